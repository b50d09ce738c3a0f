-- KEYS[1] lock  ARGV[2] channel  ARGV[3] publish command
-- -> 1 released | 0 not held
local refused = not_an_rlock() or too_long()
if refused then return refused end
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
notify(ARGV[2], ARGV[3])
return 1
