-- KEYS[1] lock  KEYS[2] counter  ARGV[1] owner  -> fencing token as decimal text | 0 not ours
if not held_by(ARGV[1]) then return 0 end
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
if last and last >= fence then fence = last + 1 end
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text) -- to stay: a Java that found none would count from 1 again
return text
