-- KEYS[1] lock  ARGV[1] token  ARGV[2] channel prefix  ARGV[3] grant lease in ms
-- ARGV[4] + and the fleet hold in ms, optional
-- -> 1 released, or granted to the next waiter | 0 not the holder
if not holds(value, ARGV[1]) then return 0 end
if not grant_next(value, ARGV[1], ARGV[3], '', ARGV[4]) then redis.call('DEL', KEYS[1]) end
return 1
