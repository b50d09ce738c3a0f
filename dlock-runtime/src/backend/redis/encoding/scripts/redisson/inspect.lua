-- KEYS[1] lock
-- -> {holder, ttl} | 0 absent  ttl in ms, -1 for none
local refused = not_an_rlock() or too_long()
if refused then return refused end
local holder = redis.call('HRANDFIELD', KEYS[1])
if not holder then return 0 end
return {holder, redis.call('PTTL', KEYS[1])}
