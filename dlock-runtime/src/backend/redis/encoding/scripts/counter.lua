-- Shared by the scripts that issue fencing tokens.

-- Returns the number in the counter as text, '0' if there is no counter, or nil if its value is not
-- such a number. Reads at most 20 bytes: a 64-bit integer has at most 19 digits.
local function last_token()
  local text = redis.pcall('GETRANGE', KEYS[2], '0', '19')
  if text.err then
    if string.find(text.err, 'WRONGTYPE', 1, true) then return nil end
    redis.call('GETRANGE', KEYS[2], '0', '19') -- raises the error
  end
  if text == '' and redis.call('PTTL', KEYS[2]) == -2 then return '0' end
  if #text < 20 and (text == '0' or string.find(text, '^[1-9]%d*$')) then return text end
end

