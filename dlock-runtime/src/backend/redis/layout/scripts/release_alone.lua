-- The whole release where nobody waits: the value is the token. What follows is for all other values.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end

