-- KEYS[1] lock  ARGV[1] token  -> 1 freed | 0 not ours
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
free()
return 1
