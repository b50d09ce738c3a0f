-- ARGV[2] the shortest time to live  ARGV[3] ok | err | none  ARGV[4] result
-- ARGV[5] 1 to replace a result that an operator has stored, else 0
-- -> 1 stored | 0 there is a result | -1 absent | -2 running
local h = redis.call('HMGET', KEYS[1], 's', 'l', 'o')
if not h[1] then return -1 end
if not (is_phase(h[1]) and are_numbers(h[2])) then return no_record() end
if h[1] == 'P' and h[2] - clock() > 0 then return -2 end
if h[1] == 'C' and not (ARGV[5] == '1' and h[3] == '') then return 0 end
-- The attempt may have had a longer time to live, which its caller relies on.
store(number(math.max(ARGV[2], redis.call('PTTL', KEYS[1]))), ARGV[3], ARGV[4])
redis.call('HSET', KEYS[1], 'o', '')
return 1
