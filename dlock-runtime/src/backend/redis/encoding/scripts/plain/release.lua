-- KEYS[1] lock  ARGV[1] token  ARGV[2] channels  -> 1 freed | 0 not ours. As `free` in the library, which costs more to make than to call.
if redis.call('GETRANGE', KEYS[1], '0', '32') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[2] .. KEYS[1], '')
return 1
