-- What the scripts share that let go of a lock.

-- Returns what is left of the time to live. A key that somebody has made to live for ever gets a day: no lock may outlive everybody who
-- knows of it.
local function time_left()
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl < 0 then return 86400000 end
  return math.max(ttl, 1) -- 0: in its last millisecond
end

-- Writes `value`, to live for `ttl` ms. Where memory is full Redis refuses that, unless the script has made a write that it allows.
local function put(value, ttl)
  local refused = redis.pcall('SET', KEYS[1], value, 'PX', ttl).err
  if not refused then return end
  if string.find(refused, 'OOM', 1, true) then redis.call('PEXPIRE', KEYS[1], ttl) end
  redis.call('SET', KEYS[1], value, 'PX', ttl)
end

-- Tells whoever waits under `token` that it has the lock for `lease` ms, or with 0 that it waits no more; returns how many heard it.
-- ARGV[2] is what the channels of the lock's namespace begin with; a channel does not show the token.
local function tell(token, lease)
  return redis.pcall('PUBLISH', ARGV[2] .. redis.sha1hex(string.sub(token, 1, 20)), token .. lease .. '|' .. KEYS[1])
end

-- Makes the first live waiter of `value` the holder and puts `behind` after the last; returns whether there was one. `streak` follows
-- the lease in what it is told. A waiter whose process nobody listens for (PUBLISH says 0) is dead and passed over: then what stands
-- there is for the caller to write. It is written before it is told: a write can fail. A publish that an ACL refuses grants all the
-- same: the waiter learns of it by asking again.
--
-- Only the first write can fail: Redis refuses no later one of a script for want of memory. So dead waiters are not written one by one,
-- which would make the time quadratic in their number.
local function hand_over(value, token, grant_lease, behind, streak)
  local width, first = #token, #token + 1
  for at = first, #value - width + 1, width do
    if at == first then put(string.sub(value, at) .. behind, grant_lease) end
    if tell(string.sub(value, at, at + width - 1), grant_lease .. (streak or '')) ~= 0 then
      if at > first then put(string.sub(value, at) .. behind, grant_lease) end
      return true
    end
  end
  return false
end

