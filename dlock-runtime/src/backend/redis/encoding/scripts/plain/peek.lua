-- KEYS[1] lock
-- -> {3, ttl}  ttl in ms, -1 for none, 0 if not held
local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 then return {3, 0} end
redis.call('GETRANGE', KEYS[1], '0', '0') -- an error if it is not a string
return {3, ttl}
