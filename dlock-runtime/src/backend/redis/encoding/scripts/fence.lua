-- KEYS[1] lock  KEYS[2] counter  ARGV[1] token  ARGV[2] counter's time to live in ms
-- ARGV[3] a token that another server issued, optional
-- -> fencing token as decimal text | 0 not the holder
--    | -1 the counter has no next number below 2^53, the limit of exact integers in Lua
if not held_by(ARGV[1]) then return 0 end
local text = last_token()
if not text then return -1 end
local last, fence = tonumber(text), nil
if ARGV[3] then
  fence = math.max(last, tonumber(ARGV[3]))
else
  local time = redis.call('TIME')
  fence = time[1] * 1000000 + time[2]
  if last >= fence then fence = last + 1 end
end
if fence > 9007199254740991 then return -1 end
text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text, 'PX', ARGV[2])
return text
