-- The whole release where nobody waits: the value is the token. What follows is for all other values.
local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
if value == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
