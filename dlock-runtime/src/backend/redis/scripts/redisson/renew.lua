-- KEYS[1] lock  ARGV[1] owner  ARGV[2] lease in ms  -> 1 ours, for at least the lease from now | 0 not ours
if not held_by(ARGV[1]) then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
