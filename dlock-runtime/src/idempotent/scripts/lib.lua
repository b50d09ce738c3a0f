-- Shared by all scripts of records. A record is a hash:
--   s phase: P running, C completed, T completed without its result, F forgotten with its steps
--   o owner; empty if an operator stored the result
--   n attempt  l end of the lease, 0 if its owner ended it  cr 1 if the attempt before crashed
--   c created  d done  p what a crash does: fail, rerun, or resume
--   f fingerprint  fn function  v version  k kind of the result: ok or err  r result
--   w the ids of the processes to notify, each 40 characters  x:<name> the result of a step
-- Times are in ms of the server's clock. ARGV[1] is the prefix of the namespace's channels.
--
-- If memory is full, Redis rejects HSET unless the script has already made a permitted write. So
-- an owner's script sets the time to live first: a result is stored even then.

-- Other clients can write to the key as well. Copying much of it would block the server, and a
-- reply above 4 MiB would close the connection. If an ACL rejects MEMORY USAGE, the size is
-- unknown.
local MOST_FIELDS, LARGEST, LONGEST_QUEUE = 128, 4000000, 5120
-- Calls count attempts in 32 bits.
local LAST_ATTEMPT = 4294967294
-- The end of a lease that its owner ended.
local ENDED = '0'

local function is_larger_than_a_record()
  if redis.call('HLEN', KEYS[1]) > MOST_FIELDS then return true end
  local size = redis.pcall('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
  return type(size) == 'number' and size > LARGEST
end

if is_larger_than_a_record() then
  return redis.error_reply('WRONGTYPE the key holds a hash that is larger than a record')
end

local function no_record()
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a record')
end

-- Returns whether all are numbers as scripts write them. Larger ones are inexact.
local function are_numbers(...)
  for at = 1, select('#', ...) do
    local text = select(at, ...)
    if not text or #text > 16 or not string.find(text, '^%d+$') or tonumber(text) > 9007199254740990 then
      return false
    end
  end
  return true
end

local function is_attempt(text) return are_numbers(text) and tonumber(text) <= LAST_ATTEMPT end

-- Returns whether the bytes are UTF-8. Each sequence becomes a letter, so that its neighbors do not
-- become one.
local function is_text(bytes)
  if not string.find(bytes, '[\128-\255]') then return true end
  for _, sequence in ipairs({'[\194-\223]', '\224[\160-\191]', '[\225-\236\238\239][\128-\191]', '\237[\128-\159]',
    '\240[\144-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191]', '\244[\128-\143][\128-\191]'}) do
    bytes = string.gsub(bytes, sequence .. '[\128-\191]', 'x')
  end
  return not string.find(bytes, '[\128-\255]')
end

local function is_version(text) return text and string.find(text, '^%d+:') and is_text(text) end

local function is_phase(text) return text == 'P' or text == 'C' or text == 'T' or text == 'F' end

local function is_result(kind, result) return (kind == 'ok' or kind == 'err') and result end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function number(n) return string.format('%.0f', n) end

-- Returns the phase, the owner, and the end of its lease.
local function state()
  local fields = redis.call('HMGET', KEYS[1], 's', 'o', 'l')
  return fields[1], fields[2], fields[3]
end

-- Returns the ids of the waiting processes, one after the other.
local function queue() return string.sub(redis.call('HGET', KEYS[1], 'w') or '', 1, LONGEST_QUEUE) end

-- Notifies the waiting processes, and forgets them.
local function announce()
  local waiting = queue()
  if waiting == '' then return end
  redis.call('HDEL', KEYS[1], 'w')
  for at = 1, #waiting, 40 do
    redis.pcall('PUBLISH', ARGV[1] .. string.sub(waiting, at, at + 39), 'changed|' .. KEYS[1])
  end
end

-- Returns the names and the results of the steps, one after the other.
local function steps()
  local fields, found = redis.call('HGETALL', KEYS[1]), {}
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, 2) == 'x:' then
      found[#found + 1] = string.sub(fields[at], 3)
      found[#found + 1] = fields[at + 1]
    end
  end
  return found
end

-- Returns whether these are names and results of steps, as scripts write them.
local function are_steps(found)
  for at = 1, #found, 2 do
    local result = found[at + 1]
    if not is_text(found[at]) or (result ~= '-' and string.sub(result, 1, 1) ~= '+') then return false end
  end
  return true
end

local function delete_steps()
  local found = steps()
  for at = 1, #found, 2 do redis.call('HDEL', KEYS[1], 'x:' .. found[at]) end
end

-- Writes the key without a change. The end of an attempt that is sent again counts only once
-- replicas acknowledge a write of its connection. If memory is full, HSET needs an earlier write.
local function touch()
  local left = redis.call('PTTL', KEYS[1])
  if left > 0 then redis.call('PEXPIRE', KEYS[1], left) end
end

-- Ends the lease of the owner. Late renewals and starts of its token do not bring it back.
local function end_lease()
  touch()
  redis.call('HSET', KEYS[1], 'l', ENDED)
  announce()
end

-- Stores a result of a kind: ok, err, or none.
local function store(ttl, kind, result)
  redis.call('PEXPIRE', KEYS[1], ttl)
  delete_steps()
  if kind == 'none' then
    redis.call('HSET', KEYS[1], 's', 'T', 'd', number(clock()))
  else
    redis.call('HSET', KEYS[1], 's', 'C', 'd', number(clock()), 'k', kind, 'r', result)
  end
  announce()
end

