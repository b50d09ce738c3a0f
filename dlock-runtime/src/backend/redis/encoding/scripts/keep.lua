-- KEYS[1] lock  ARGV[1] token  ARGV[2] time to live in ms  -> 1 ours, for just that time from now | 0 not ours
if not held_by(ARGV[1]) then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
