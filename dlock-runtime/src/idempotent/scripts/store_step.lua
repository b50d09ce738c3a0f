-- ARGV[2] token  ARGV[3] time to live  ARGV[4] name  ARGV[5] result
-- -> 1 stored | 0 not the owner | -1 absent
local phase, owner = state()
if not phase then return -1 end
if phase ~= 'P' or owner ~= ARGV[2] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[1], 'x:' .. ARGV[4], ARGV[5])
return 1
