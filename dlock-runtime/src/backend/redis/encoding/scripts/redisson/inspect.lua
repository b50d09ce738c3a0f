-- KEYS[1] lock  KEYS[2] counter
-- -> {holder, ttl, fence} | 0 absent
-- ttl in ms, -1 for none; fence: the counter's text, '' if unusable
local refused = not_an_rlock() or too_long()
if refused then return refused end
local holder = redis.call('HRANDFIELD', KEYS[1])
if not holder then return 0 end
local fence = redis.pcall('GETRANGE', KEYS[2], '0', '19')
if type(fence) ~= 'string' then fence = '' end
return {holder, redis.call('PTTL', KEYS[1]), fence}
