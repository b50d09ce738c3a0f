-- Shared by the scripts that release a lock.

-- Returns the remaining time to live. A key without one gets a day: no lock may last forever.
local function time_left()
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl < 0 then return 86400000 end
  return math.max(ttl, 1) -- 0 in the last millisecond
end

-- Writes `value` with a time to live of `ttl` ms. If memory is full, Redis rejects SET unless the
-- script has already made a permitted write.
local function put(value, ttl)
  local refused = redis.pcall('SET', KEYS[1], value, 'PX', ttl).err
  if not refused then return end
  if string.find(refused, 'OOM', 1, true) then redis.call('PEXPIRE', KEYS[1], ttl) end
  redis.call('SET', KEYS[1], value, 'PX', ttl)
end

-- Notifies the waiter `token` that it holds the lock for `lease` ms; with 0, that it is not queued
-- any more. Returns the number of receivers. ARGV[2] is the prefix of the namespace's channels; a
-- channel does not show the token.
local function notify(token, lease)
  return redis.pcall('PUBLISH', ARGV[2] .. redis.sha1hex(string.sub(token, 1, 20)), token .. lease .. '|' .. KEYS[1])
end

-- Makes the first live waiter in `value` the holder, and appends `behind` to the queue. Returns
-- whether there was one. `fleet_hold` follows the lease in the message. A waiter without
-- subscribers (PUBLISH returns 0) is dead and passed over; if all are dead, the caller writes the
-- key. The value is written before the message is sent, because a write can fail. A
-- publish that an ACL rejects still grants: the waiter learns of it at its next check.
--
-- Only the first write can fail: Redis rejects no later write of a script for lack of memory. So
-- dead waiters are not removed one by one, which would take quadratic time.
local function grant_next(value, token, grant_lease, behind, fleet_hold)
  local width, first = #token, #token + 1
  for at = first, #value - width + 1, width do
    if at == first then put(string.sub(value, at) .. behind, grant_lease) end
    if notify(string.sub(value, at, at + width - 1), grant_lease .. (fleet_hold or '')) ~= 0 then
      if at > first then put(string.sub(value, at) .. behind, grant_lease) end
      return true
    end
  end
  return false
end

