-- ARGV[2] id of a process
-- -> 1 | -1 absent
if not state() then return -1 end
local waiting, left = queue(), ''
for at = 1, #waiting, 40 do
  local id = string.sub(waiting, at, at + 39)
  if id ~= ARGV[2] then left = left .. id end
end
if left == '' then
  redis.call('HDEL', KEYS[1], 'w')
elseif left ~= waiting then
  redis.call('HSET', KEYS[1], 'w', left)
end
return 1
