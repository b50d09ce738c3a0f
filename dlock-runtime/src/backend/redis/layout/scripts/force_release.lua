-- KEYS[1] lock  ARGV[1] any token of ours  ARGV[2] grant lease in ms  -> 1 taken from its holder | 0 nobody held it
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if not is_ours(value, ARGV[1]) or not hand_over(value, ARGV[1], ARGV[2], '') then redis.call('DEL', KEYS[1]) end
return 1
