-- KEYS[1] lock  -> 1 taken from its holder | 0 nobody held it
if not redis.call('GET', KEYS[1]) then return 0 end
free()
return 1
