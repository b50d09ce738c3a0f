-- KEYS[1] lock  ARGV[1] token  ARGV[2] grant lease in ms  ARGV[3] next token  ARGV[4] +streak in ms, or none  -> 2 handed over, next queued | 1 kept | 0 not ours
local value = held_by(ARGV[1])
if not value then return 0 end
if #value > #ARGV[1] then
  local ttl = time_left()
  if hand_over(value, ARGV[1], ARGV[2], ARGV[3], ARGV[4]) then return 2 end
  put(ARGV[1], ttl)
end
return 1
