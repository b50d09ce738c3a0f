-- KEYS[1] lock  ARGV[1] any dlock token  ARGV[2] channel prefix  ARGV[3] grant lease in ms
-- -> 1 released | 0 not held
local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
if #value > 4128 then return redis.call('PEXPIRE', KEYS[1], '1') end -- freeing 512 MB takes too long for a script
if is_ours(value, ARGV[1]) and grant_next(value, ARGV[1], ARGV[3], '') then return 1 end
return redis.call('DEL', KEYS[1])
