-- KEYS[1] lock  ARGV[1] token  ARGV[2] channel prefix  ARGV[3] grant lease in ms
-- ARGV[4] next token  ARGV[5] + and the fleet hold in ms, optional
-- -> 2 granted to the next waiter, next token queued | 1 still the holder | 0 not the holder
local value = held_by(ARGV[1])
if not value then return 0 end
if #value > #ARGV[1] then
  local ttl = time_left()
  if grant_next(value, ARGV[1], ARGV[3], ARGV[4], ARGV[5]) then return 2 end
  put(ARGV[1], ttl)
end
return 1
