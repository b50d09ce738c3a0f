-- The record of a scheduled job. It is a hash:
--   k first seen with its schedule  s last slot that started  a its attempt  t its state:
--   R running, D done, F failed, L lost, U not started  b when its first attempt started,
--   if its body did and it was not missed before  sk last slot that was skipped
--   co slot up to which missed ones are counted
--   o owner of the active run  rs its slot  rq 1 if requested  st started  le end of its lease
--   x 1 if cancelled  nd its process  fe fencing token of the last run
--   en owner of the run that ended last  w slot that waits  wt when it was last asked for
--   rr time of the request to run now  p 1 if paused  cr runs  cf failures  cs skips  cm missed
--   sp schedule of the last request  ok time of the last success  os its slot
--   hn number of past runs  h0 .. h49 the latest: slot|requested|started|finished|result|node|error
-- Times are in ms of the server's clock. The rules are those of protocol::job.
--
-- ARGV[2] is the operation, ARGV[3] the shortest time to live of the record after it, in ms, and
-- the rest are its arguments.
-- -> {time, ..}, see scheduled/operation.rs
local FIELDS = {'k', 's', 'a', 't', 'b', 'sk', 'co', 'o', 'rs', 'rq', 'st', 'le', 'x', 'nd', 'fe', 'en', 'w', 'wt',
  'rr', 'p', 'cr', 'cf', 'cs', 'cm', 'sp', 'ok', 'os', 'hn'}
local HISTORY, FURTHEST_AHEAD, LONGEST_EARLY, LONGEST_SILENCE = 50, 86400000, 10000, 5000

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Other clients can write to the key as well, and copying much of it would block the server. If an
-- ACL rejects MEMORY USAGE, the size is unknown.
local MOST_FIELDS, LARGEST = 128, 262144
local TEXTS = {t = true, o = true, nd = true, en = true, sp = true}

local function is_larger_than_a_record()
  if redis.call('HLEN', KEYS[1]) > MOST_FIELDS then return true end
  local size = redis.pcall('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
  return type(size) == 'number' and size > LARGEST
end

-- Larger numbers are inexact, so a fencing token would not rise. A script writes no number that it
-- would not read.
local LARGEST_NUMBER = 9007199254740990

local function is_number(text)
  return #text < 17 and string.find(text, '^%d+$') and tonumber(text) <= LARGEST_NUMBER
end

local function no_record()
  return redis.error_reply('WRONGTYPE the key holds a hash that is not the record of a job')
end

local function no_fence() return {string.format('%.0f', now), 'no_fence'} end

if is_larger_than_a_record() then return no_record() end
local values = redis.call('HMGET', KEYS[1], unpack(FIELDS))
local r, changed = {}, {}
for at, field in ipairs(FIELDS) do
  r[field] = values[at] or nil
  if r[field] and not TEXTS[field] and not is_number(r[field]) then
    if field == 'fe' then return no_fence() end
    return no_record()
  end
end

local function text(value)
  if type(value) == 'number' then return string.format('%.0f', value) end
  return value
end

local function set(field, value)
  r[field] = text(value)
  changed[field] = true
end

local function int(field) return tonumber(r[field] or '0') end

local function add(field, number) set(field, math.min(int(field) + number, LARGEST_NUMBER)) end

local function reply(...)
  local put, delete = {}, {}
  for field in pairs(changed) do
    if r[field] then
      put[#put + 1] = field
      put[#put + 1] = r[field]
    else
      delete[#delete + 1] = field
    end
  end
  if #put > 0 then redis.call('HSET', KEYS[1], unpack(put)) end
  if #delete > 0 then redis.call('HDEL', KEYS[1], unpack(delete)) end
  -- A request of an operator, who does not know the schedule, must not shorten its life.
  if #put + #delete > 0 and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  local parts = {text(now)}
  for at = 1, select('#', ...) do parts[#parts + 1] = text((select(at, ...))) end
  return parts
end

-- Writes the time to live first. If memory is full, Redis rejects HSET unless the script has
-- already made a permitted write. Replicas acknowledge a repeated request only if it writes again.
local function keep()
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[3])))
end

local function end_run(result, message)
  if not r.o then return end
  set('en', r.o)
  local slot, requested = r.rs, r.rq
  local past = {slot, requested or '0', r.st, text(now), result, r.nd, message}
  for _, field in ipairs({'o', 'rs', 'rq', 'st', 'le', 'x', 'nd'}) do set(field, nil) end
  if result == 'U' then
    set('cr', math.max(int('cr') - 1, 0))
    if requested then
      if not r.rr then set('rr', slot) end
    else
      set('t', 'U')
      if int('a') == 1 then set('b', nil) end
    end
    return
  end
  if not requested then set('t', (result == 'S' or result == 'C') and 'D' or result) end
  if result == 'S' then
    set('ok', now)
    set('os', slot)
  elseif result ~= 'C' then
    add('cf', 1)
  end
  redis.call('HSET', KEYS[1], 'h' .. text(int('hn') % HISTORY), table.concat(past, '|'))
  add('hn', 1)
end

-- Returns whether the run that ended last has this result. One that did not start is no past run.
local function ended_as(result)
  local past = redis.call('HMGET', KEYS[1], 'h' .. text((int('hn') - 1) % HISTORY))[1]
  return result == 'U' or (past and string.match(past, '^[^|]*|[^|]*|[^|]*|[^|]*|(%a)|') == result)
end

local function lease_left() return int('le') - now end

local function wait_for(what)
  set('w', what)
  set('wt', what and now)
end

local function skip(what)
  local waited = r.w and int('w') == what
  if waited then wait_for(nil) end
  if waited or what > math.max(int('s'), int('sk')) then
    add('cs', 1)
    set('sk', math.max(int('sk'), what))
  end
end

-- Slots before a schedule was first seen are none of its missed ones. Callers that choose slots
-- have no schedule.
local function see(schedule)
  if schedule ~= '' and schedule ~= r.sp then
    set('sp', schedule)
    set('k', now)
  end
  if not r.k then set('k', now) end
end

if ARGV[2] == 'read' then
  return {text(now), redis.call('HGETALL', KEYS[1])}
end

if ARGV[2] == 'renew' then
  if r.o ~= ARGV[4] then return reply('not_owner') end
  keep()
  set('le', math.max(int('le'), now + ARGV[5]))
  return reply(r.x and 'cancelled' or 'owner')
end

if ARGV[2] == 'finish' then
  local owner, result, message, counted, missed = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
  local is_repeated = r.en == owner and ended_as(result)
  if r.o ~= owner and not is_repeated then return reply('not_owner') end
  keep()
  if is_repeated then return reply('owner') end
  if counted ~= '' and tonumber(counted) >= int('co') and tonumber(counted) < int('s') then
    set('co', int('s'))
    add('cm', tonumber(missed))
  end
  end_run(result, message)
  return reply('owner')
end

if ARGV[2] == 'pause' or ARGV[2] == 'resume' then
  if r.k then keep() else set('k', now) end
  if ARGV[2] == 'resume' and r.p then
    if r.w and int('w') <= now then skip(int('w')) end
    set('sk', math.max(int('sk'), now))
    if r.o and int('le') <= now then end_run('L', '') end
    if r.t and r.t ~= 'R' and int('s') <= now then set('t', 'D') end
    set('p', nil)
  elseif ARGV[2] == 'pause' then
    set('p', '1')
  end
  return reply('owner')
end

if ARGV[2] == 'register' then
  local spec_before = r.sp or ''
  if r.k then keep() end
  see(ARGV[4])
  reply()
  return {text(now), redis.call('HGETALL', KEYS[1]), spec_before}
end

if ARGV[2] == 'request' then
  if not r.k then return reply('not_owner') end
  keep()
  set('rr', now)
  return reply('owner')
end

if ARGV[2] == 'reset' then
  if r.k then keep() end
  local slot = int('s')
  local is_early = slot > now and slot <= now + LONGEST_EARLY
  for _, field in ipairs({'s', 'a', 't', 'b', 'o', 'rs', 'rq', 'st', 'le', 'x', 'nd', 'en', 'w', 'wt', 'rr'}) do
    if r[field] then set(field, nil) end
  end
  set('k', now)
  set('sk', is_early and slot or now)
  set('co', now)
  return reply('owner')
end

-- begin
local kind, slot, from, untl, previous = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local owner, node, spec, lease = ARGV[9], ARGV[10], ARGV[11], tonumber(ARGV[12])
local overlap, crashed, retries, min_hold = ARGV[13], ARGV[14], tonumber(ARGV[15]), tonumber(ARGV[16])

-- The last parts are the schedule of the last request, the newest slot, and the request to run.
local spec_before, slot_before = r.sp or '', text(math.max(int('s'), int('sk')))
local function answer(what, a, b, c, d)
  return reply(what, a or '', b or '', c or '', d or '', spec_before, slot_before, r.rr or '')
end

local function counted() return math.max(int('co'), int('sk'), int('k')) end

-- Returns a reply if there is no further fencing token.
local function activate(what, requested)
  local fence = math.max(now * 1000, int('fe') + 1)
  if fence > LARGEST_NUMBER then return no_fence() end
  add('cr', 1)
  set('fe', fence)
  set('o', owner)
  set('rs', what)
  set('rq', requested and '1' or nil)
  set('st', now)
  set('le', now + lease)
  set('x', nil)
  set('nd', node)
end

-- As its first attempt, a missed slot that runs again counts no missed slots.
local function repeats_missed() return int('a') > 1 and not r.b end

local function start(what, attempt)
  if what > int('s') and r.t == 'L' and r.b then set('co', math.max(int('co'), int('s'))) end
  local from_missed = counted()
  set('s', what)
  set('a', attempt)
  set('t', 'R')
  if attempt == 1 then set('b', kind ~= 'missed' and now or nil) end
  -- A slot that is passed is skipped, unless it is counted as missed.
  if r.w and int('w') < what and int('w') <= from_missed then skip(int('w')) end
  if r.w and int('w') <= what then wait_for(nil) end
  if repeats_missed() then from_missed = what end
  return activate(what, false) or answer('run', what, attempt, from_missed, int('fe'))
end

local waits = r.w and int('w') == slot
if kind == 'tick' and (now < from or now >= untl) and not waits then return answer('other') end
if kind ~= 'requested' and slot > now + FURTHEST_AHEAD then return answer('skip', 'ahead') end
if r.en == owner then return answer('skip', 'done') end
if r.o == owner then
  keep()
  set('le', math.max(int('le'), now + lease))
  local from_missed = not r.rq and repeats_missed() and int('rs') or counted()
  return answer('run', int('rs'), r.rq and 1 or int('a'), from_missed, int('fe'))
end
see(spec)
if r.o and int('le') <= now then end_run('L', '') end

if kind == 'requested' then
  if not r.rr then return answer('skip', 'not_requested') end
  if r.o then return answer('skip', 'running', lease_left()) end
  local requested = int('rr')
  set('rr', nil)
  return activate(requested, true) or answer('run', requested, 1, counted(), int('fe'))
end

if r.p then
  skip(slot)
  return answer('skip', 'paused')
end

local has_attempts_left = (r.t == 'F' and int('a') <= retries)
  or (r.t == 'L' and crashed == 'rerun' and int('a') <= math.max(retries, 1))

if slot == int('s') and r.t then
  if r.o then return answer('skip', 'running', lease_left()) end
  if r.t == 'U' then return start(slot, int('a')) end
  if has_attempts_left then return start(slot, int('a') + 1) end
  return answer('skip', 'done')
end

-- A process that read the record before another schedule was seen still asks for its missed slots.
local is_of_other_schedule = kind == 'missed' and slot <= int('k')
if slot < int('s') or (slot <= int('sk') and not waits) or is_of_other_schedule then
  return answer('skip', 'late', int('s'))
end

-- A slot cancels a run that started before it was due, and one that a caller chose each run.
local function cancel()
  local is_due_since = int('st') < slot or (kind == 'slot' and not waits)
  if overlap == 'cancel_previous' and r.o and is_due_since then set('x', '1') end
end

-- Newer slots wait for a missed one until its last attempt has ended, and while it runs also if the
-- schedule has changed, or the caller has no runner. A slot that was given back starts again, even
-- if newer ones were skipped for it.
local is_missed_running = r.t == 'R' and not r.b
local is_open = r.t == 'U' or (not r.b and (is_missed_running or has_attempts_left))
local decided = is_open and int('s') - 1 or math.max(int('s'), int('sk'))
local since = math.max(decided, int('k'))
local are_missed_first = is_missed_running or (previous ~= '' and since < tonumber(previous))
if kind == 'tick' and are_missed_first and not waits then
  cancel()
  return answer('missed', since, is_missed_running and '1')
end

local left = r.o and lease_left() or 0
if r.b and now >= int('b') and kind ~= 'missed' then left = math.max(left, min_hold - (now - int('b'))) end
local is_live = r.w and now >= int('wt') and now - int('wt') < LONGEST_SILENCE
local is_older_waiting = overlap == 'queue_one' and is_live and int('w') < slot
-- A process that read the record before the last slot failed asks for the next one.
local must_wait = kind == 'missed' and is_open and int('s') > int('k')
if left <= 0 and not must_wait and not is_older_waiting then return start(slot, 1) end
if kind == 'missed' then return answer('skip', 'running', left) end
local is_next = waits or not is_live
cancel()
if overlap == 'cancel_previous' or (overlap == 'queue_one' and is_next) then
  if r.w and int('w') < slot then skip(int('w')) end
  wait_for(slot)
  return answer('wait', left)
end
skip(slot)
return answer('skip', 'overlap', left)
