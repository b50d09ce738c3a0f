-- KEYS[1] lock  ARGV[1] token  -> 1 freed | 0 not ours. Nobody is told: what is undone was never a hold.
if redis.call('GETRANGE', KEYS[1], '0', '32') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
