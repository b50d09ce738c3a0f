-- KEYS[1] lock  ARGV[1] token  ARGV[2] grant lease in ms  ARGV[3] +streak in ms, or none  -> 1 freed or handed over | 0 not ours
if not holds(value, ARGV[1]) then return 0 end
if not hand_over(value, ARGV[1], ARGV[2], '', ARGV[3]) then redis.call('DEL', KEYS[1]) end
return 1
