-- ARGV[2] token  ARGV[3] time to live  ARGV[4] ok | err | none  ARGV[5] result
-- -> 1 stored, now or before | 0 not the owner | -1 absent
local phase, owner = state()
if not phase then return -1 end
if owner ~= ARGV[2] then return 0 end
if phase == 'C' or phase == 'T' then
  touch()
  return 1
end
if phase ~= 'P' then return 0 end
store(ARGV[3], ARGV[4], ARGV[5])
return 1
