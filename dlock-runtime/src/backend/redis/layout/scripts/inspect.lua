-- KEYS[1] lock  ARGV[1] any token of ours  -> {holder, waiters, ttl} | 0 nothing there          ttl in ms, -1 for none; holder '' for a foreign value
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
local ttl, width = redis.call('PTTL', KEYS[1]), #ARGV[1]
if not is_ours(value, ARGV[1]) then return {'', 0, ttl} end
return {string.sub(value, 1, width), #value / width - 1, ttl}
