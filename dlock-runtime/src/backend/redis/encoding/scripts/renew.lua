-- KEYS[1] lock  ARGV[1] token  ARGV[2] lease in ms  ARGV[3] additional action, optional
-- -> 1 holder for at least the lease from now | 0 not the holder
if not held_by(ARGV[1]) then return 0 end
extend_ttl(redis.call('PTTL', KEYS[1]), ARGV[2], ARGV[3])
return 1
