-- ARGV[2] token
-- -> 1 ended | 0 not the owner | -1 absent
local phase, owner = state()
if not phase then return -1 end
if phase ~= 'P' or owner ~= ARGV[2] then return 0 end
end_lease()
return 1
