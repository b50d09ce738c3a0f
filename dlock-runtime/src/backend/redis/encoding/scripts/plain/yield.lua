-- KEYS[1] lock  ARGV[1] token  ARGV[2] channel prefix
-- -> {3, ttl} released, for others to acquire within ttl ms
--    | 0 released without a subscriber, or not the holder
if redis.call('GETRANGE', KEYS[1], '0', '32') ~= ARGV[1] or free() == 0 then return 0 end
return {3, 8}
