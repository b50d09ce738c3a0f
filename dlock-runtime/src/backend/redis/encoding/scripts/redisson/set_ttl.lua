-- KEYS[1] lock  ARGV[1] owner  ARGV[2] channel  ARGV[3] publish command  ARGV[4] time to live in ms
-- -> 1 holder, time to live set | 0 not the holder
if not held_by(ARGV[1]) then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
notify(ARGV[2], ARGV[3]) -- wakes waiters that wait for a longer time to live
return 1
