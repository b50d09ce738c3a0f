-- -> nil | {4, phase, attempt, lease left, ms since created, ms since done or -1, time to live,
--    fingerprint, function, version, prefix of the owner's token, kind, result, step ..}
local h = redis.call('HMGET', KEYS[1], 's', 'n', 'l', 'c', 'd', 'f', 'fn', 'v', 'o', 'k', 'r')
if not h[1] then return false end
local found = steps()
if not (is_phase(h[1]) and is_attempt(h[2]) and are_numbers(h[3], h[4], h[5] or '0') and h[6] and is_text(h[6])
  and h[7] and is_text(h[7]) and is_version(h[8]) and h[9] and are_steps(found)) then
  return no_record()
end
if h[1] == 'C' and not is_result(h[10], h[11]) then return no_record() end
local time, phase, left = clock(), h[1], 0
if phase == 'P' then
  left = math.max(h[3] - time, 0)
  if left == 0 then phase = 'X' end
end
local kind, result = '', ''
if phase == 'C' then kind, result = h[10], h[11] end
if phase == 'T' then kind = 'none' end
local done = -1
if h[5] then done = math.max(time - h[5], 0) end
local reply = {4, phase, tonumber(h[2]), left, math.max(time - h[4], 0), done,
  redis.call('PTTL', KEYS[1]), h[6], h[7], h[8], string.sub(h[9], 1, 20), kind, result}
local names = {}
for at = 1, #found, 2 do names[#names + 1] = found[at] end
table.sort(names)
for at = 1, #names do reply[#reply + 1] = names[at] end
return reply
