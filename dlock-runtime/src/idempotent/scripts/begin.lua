-- ARGV[2] token  ARGV[3] lease  ARGV[4] time to live  ARGV[5] fail | rerun | resume
-- ARGV[6] fingerprint  ARGV[7] fingerprint under the secret before  ARGV[8] function
-- ARGV[9] version  ARGV[10] id of the process to notify, or ''
-- -> {1, attempt, step, result ..} started | {2, function} another call's
--    | {3, fingerprint, function, version, phase, ..} found: 'C', kind, result | 'T'
--      | 'P', lease left, queued | 'X', attempt: crashed
local time = clock()
local h = redis.call('HMGET', KEYS[1], 's', 'o', 'n', 'l', 'f', 'fn', 'v', 'p')
local phase, owner, n = h[1], h[2], tonumber(h[3] or '0')

local function start(attempt)
  redis.call('HSET', KEYS[1], 's', 'P', 'o', ARGV[2], 'n', attempt, 'l', number(time + ARGV[3]),
    'f', ARGV[6], 'fn', ARGV[8], 'v', ARGV[9], 'p', ARGV[5])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end

if not phase then
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return no_record()
  end
  start(1)
  redis.call('HSET', KEYS[1], 'c', number(time))
  return {1, 1}
end
if not (is_phase(phase) and is_attempt(h[3]) and are_numbers(h[4]) and is_version(h[7])) then return no_record() end
if h[6] ~= ARGV[8] or (h[5] ~= ARGV[6] and (ARGV[7] == '' or h[5] ~= ARGV[7])) then
  return {2, h[6] or ''}
end
if phase == 'C' then
  local r = redis.call('HMGET', KEYS[1], 'k', 'r')
  if not is_result(r[1], r[2]) then return no_record() end
  return {3, h[5], h[6], h[7], 'C', r[1], r[2]}
end
if phase == 'T' then return {3, h[5], h[6], h[7], 'T'} end
-- A late start of an attempt that has ended its lease starts nothing.
local is_repeated = phase == 'P' and owner == ARGV[2] and h[4] ~= ENDED
if phase == 'P' and not is_repeated then
  local left = h[4] - time
  if left > 0 then
    local queued, waiting = 0, queue()
    if ARGV[10] ~= '' then
      if string.find(waiting, ARGV[10], 1, true) then
        queued = 1
      elseif #waiting < LONGEST_QUEUE then
        redis.call('HSET', KEYS[1], 'w', waiting .. ARGV[10])
        queued = 1
      end
    end
    return {3, h[5], h[6], h[7], 'P', left, queued}
  end
  if owner == ARGV[2] or ARGV[5] == 'fail' or h[8] == 'fail' then return {3, h[5], h[6], h[7], 'X', n} end
end
-- A call that could not read the reply would not run, so it must not start.
local found = steps()
if not is_repeated then n = n + 1 end
if n > LAST_ATTEMPT or not are_steps(found) then return no_record() end
if phase == 'P' and not is_repeated then
  if ARGV[5] == 'rerun' then
    delete_steps()
    found = {}
  end
  redis.call('HSET', KEYS[1], 'cr', '1')
end
start(n)
local reply = {1, n}
for at = 1, #found do reply[at + 2] = found[at] end
return reply
