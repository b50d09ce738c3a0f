-- KEYS[1] lock  ARGV[2] channel prefix
-- -> 1 released | 0 not held
local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
if #value > 4128 then return redis.call('PEXPIRE', KEYS[1], '1') end -- freeing 512 MB takes too long for a script
if value == '' and redis.call('PTTL', KEYS[1]) == -2 then return 0 end
free()
return 1
