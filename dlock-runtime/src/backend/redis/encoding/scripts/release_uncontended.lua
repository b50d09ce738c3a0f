-- The complete release if the queue is empty: the value is the token. The rest handles all other
-- values.
local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
if value == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
