-- KEYS[1] lock  KEYS[2] counter  ARGV[1] owner
-- -> fencing token as decimal text | 0 not the holder
--    | -1 the counter has no next number below 2^63

-- Returns the successor of `text`, by digits: numbers in Lua are exact only below 2^53.
local function successor(text)
  local head, digit, nines = string.match(text, '^(%d-)([0-8]?)(9*)$')
  return head .. (digit == '' and 1 or digit + 1) .. string.rep('0', #nines)
end

if not held_by(ARGV[1]) then return 0 end
local last = last_token()
if not last then return -1 end
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
local text = tonumber(last) < fence and string.format('%.0f', fence) or successor(last)
if #text > 19 or (#text == 19 and text > '9223372036854775807') then return -1 end
redis.call('SET', KEYS[2], text) -- no time to live: without the key, Redisson would restart at 1
return text
