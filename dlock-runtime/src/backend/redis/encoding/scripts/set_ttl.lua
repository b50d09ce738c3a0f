-- KEYS[1] lock  ARGV[1] token  ARGV[2] time to live in ms
-- -> 1 holder, time to live set | 0 not the holder
if not held_by(ARGV[1]) then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
