-- KEYS[1] lock  ARGV[1] owner  ARGV[2] channel  ARGV[3] how it is told  -> 1 freed | 0 not ours
if not held_by(ARGV[1]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1]) -- the key goes with its last field; to delete a million others takes longer than a script may
ring(ARGV[2], ARGV[3])
return 1
