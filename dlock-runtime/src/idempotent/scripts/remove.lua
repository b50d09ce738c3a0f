-- ARGV[2] 1 to delete also the record of a completed call, else 0
-- -> 1 deleted | -1 absent | -2 running | -3 completed
local h = redis.call('HMGET', KEYS[1], 's', 'l')
if not h[1] then return -1 end
if not (is_phase(h[1]) and are_numbers(h[2])) then return no_record() end
if h[1] == 'P' and h[2] - clock() > 0 then return -2 end
if (h[1] == 'C' or h[1] == 'T') and ARGV[2] ~= '1' then return -3 end
announce()
redis.call('DEL', KEYS[1])
return 1
