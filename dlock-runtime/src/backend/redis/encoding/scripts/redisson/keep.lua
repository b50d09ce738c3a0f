-- KEYS[1] lock  ARGV[1] owner  ARGV[2] channel  ARGV[3] how it is told  ARGV[4] time to live in ms  -> 1 ours, for just that time from now | 0 not ours
if not held_by(ARGV[1]) then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
ring(ARGV[2], ARGV[3]) -- who waits for the longer time to live that he was told of learns of this one
return 1
