-- KEYS[1] lock  ARGV[1] token  ARGV[2] channel prefix  ARGV[3] grant lease in ms
-- -> 1 removed | 0 was neither holder nor queued
local token = ARGV[1]
local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
if not is_ours(value, token) then return 0 end
local place = place_of(value, token)
if not place then return 0 end
if place == 1 then
  if not grant_next(value, token, ARGV[3], '') then redis.call('DEL', KEYS[1]) end
  return 1
end
put(string.sub(value, 1, place - 1) .. string.sub(value, place + #token), time_left())
return 1
