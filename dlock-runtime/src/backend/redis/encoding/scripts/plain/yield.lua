-- KEYS[1] lock  ARGV[1] token  ARGV[2] channels  -> {3, ttl} freed, for others to take within ttl ms | 0 freed and nobody heard it, or not ours
if redis.call('GETRANGE', KEYS[1], '0', '32') ~= ARGV[1] or free() == 0 then return 0 end
return {3, 8}
