-- KEYS[1] lock  ARGV[1] owner  ARGV[2] channel  ARGV[3] publish command
-- -> {3, ms} released, for others to acquire within ms | 0 not the holder
if not held_by(ARGV[1]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1]) -- removes the key with its last field; DEL of a million fields would take too long
notify(ARGV[2], ARGV[3])
return {3, 10}
