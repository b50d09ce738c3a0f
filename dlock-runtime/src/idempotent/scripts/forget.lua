-- ARGV[2] token  ARGV[3] time to live  ARGV[4] 1 if the body has started
-- -> 1 forgotten, now or before | 0 not the owner | -1 absent
local phase, owner = state()
if not phase then return -1 end
if owner ~= ARGV[2] then return 0 end
if phase == 'F' then
  touch()
  return 1
end
if phase ~= 'P' then return 0 end
if ARGV[4] == '0' and redis.call('HGET', KEYS[1], 'cr') then
  end_lease()
  return 1
end
announce()
if #steps() == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  redis.call('HDEL', KEYS[1], 'cr')
  redis.call('HSET', KEYS[1], 's', 'F')
end
return 1
