-- KEYS[1] lock  ARGV[1] token  ARGV[2] channels  ARGV[3] grant lease in ms  ARGV[4] next token  ARGV[5] +streak in ms, or none  -> 2 handed over, next queued | 1 kept | 0 not ours
local value = held_by(ARGV[1])
if not value then return 0 end
if #value > #ARGV[1] then
  local ttl = time_left()
  if hand_over(value, ARGV[1], ARGV[3], ARGV[4], ARGV[5]) then return 2 end
  put(ARGV[1], ttl)
end
return 1
