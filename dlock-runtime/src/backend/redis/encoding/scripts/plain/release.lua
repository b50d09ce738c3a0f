-- KEYS[1] lock  ARGV[1] token  ARGV[2] channel prefix
-- -> 1 released | 0 not the holder
-- Inlines `free` of the library, which costs more to define than to call.
if redis.call('GETRANGE', KEYS[1], '0', '32') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[2] .. KEYS[1], '')
return 1
