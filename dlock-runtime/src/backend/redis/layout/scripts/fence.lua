-- KEYS[1] lock  KEYS[2] counter  ARGV[1] token  ARGV[2] counter's life in ms  ARGV[3] a token that others issued, or none
-- -> fencing token as decimal text | 0 not ours
if not held_by(ARGV[1]) then return 0 end
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
local fence
if ARGV[3] then
  fence = math.max(last or 0, tonumber(ARGV[3]))
else
  local time = redis.call('TIME')
  fence = time[1] * 1000000 + time[2]
  if last and last >= fence then fence = last + 1 end
end
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text, 'PX', ARGV[2])
return text
