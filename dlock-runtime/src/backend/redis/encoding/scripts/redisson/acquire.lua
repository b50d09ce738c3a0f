-- KEYS[1] lock  ARGV[1] owner  ARGV[2] lease in ms  -> {1, 0} ours | {3, ttl} somebody's          ttl in ms, -1 for none
if held_by(ARGV[1]) or redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], 1) -- no HINCRBY: said again, it changes nothing
  local ends = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(ends) == 'table' then -- an ACL refused it: no lock may live for ever
    redis.call('HDEL', KEYS[1], ARGV[1])
    return ends
  end
  return {1, 0}
end
local refused = not_an_rlock()
if refused then return refused end
return {3, redis.call('PTTL', KEYS[1])}
