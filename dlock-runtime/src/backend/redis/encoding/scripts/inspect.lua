-- KEYS[1] lock  KEYS[2] counter  ARGV[1] any dlock token
-- -> {holder, waiters, ttl, fence} | 0 absent
-- ttl in ms, -1 for none; holder '' for a foreign value; fence: the counter's text, '' if unusable
local ttl, width = redis.call('PTTL', KEYS[1]), #ARGV[1]
if ttl == -2 then return 0 end
local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
if not is_ours(value, ARGV[1]) then return {'', 0, ttl, ''} end
local fence = redis.pcall('GETRANGE', KEYS[2], '0', '19')
if type(fence) ~= 'string' then fence = '' end
return {string.sub(value, 1, width), #value / width - 1, ttl, fence}
