-- KEYS[1] lock  -> {3, ttl}          ttl in ms, -1 for none, 0 where nobody holds it
if not redis.call('GET', KEYS[1]) then return {3, 0} end
return {3, redis.call('PTTL', KEYS[1])}
