-- KEYS[1] lock  ARGV[1] token  ARGV[2] channel prefix
-- -> 1 released, waiters notified | 0 not the holder
if not holds(value, ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
local width = #ARGV[1]
for at = width + 1, #value, width do notify(string.sub(value, at, at + width - 1), 0) end
return 1
