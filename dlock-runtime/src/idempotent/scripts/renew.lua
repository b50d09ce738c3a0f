-- ARGV[2] token  ARGV[3] lease  ARGV[4] time to live
-- -> 1 extended | 0 not the owner | -1 absent
local phase, owner, lease_end = state()
if not phase then return -1 end
if phase ~= 'P' or owner ~= ARGV[2] or lease_end == ENDED then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('HSET', KEYS[1], 'l', number(clock() + ARGV[3]))
return 1
