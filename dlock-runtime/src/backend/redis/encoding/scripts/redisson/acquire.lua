-- KEYS[1] lock  ARGV[1] owner  ARGV[2] lease in ms
-- -> {1, 0} holder | {3, ttl} held by another  ttl in ms, -1 for none
if held_by(ARGV[1]) or redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], 1) -- not HINCRBY: a repeated call changes nothing
  local ends = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(ends) == 'table' then -- rejected by an ACL: no lock may last forever
    redis.call('HDEL', KEYS[1], ARGV[1])
    return ends
  end
  return {1, 0}
end
local refused = not_an_rlock()
if refused then return refused end
return {3, redis.call('PTTL', KEYS[1])}
