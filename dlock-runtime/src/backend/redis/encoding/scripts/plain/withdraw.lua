-- KEYS[1] lock  ARGV[1] token
-- -> 1 released | 0 not the holder
-- Publishes nothing: it serves cleanup and releases without hand-off.
if redis.call('GETRANGE', KEYS[1], '0', '32') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
