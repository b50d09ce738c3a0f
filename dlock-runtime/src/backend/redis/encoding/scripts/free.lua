-- KEYS[1] lock  ARGV[1] token  ARGV[2] channels  -> 1 freed, whoever waited | 0 not ours
if not holds(value, ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
local width = #ARGV[1]
for at = width + 1, #value, width do tell(string.sub(value, at, at + width - 1), 0) end
return 1
