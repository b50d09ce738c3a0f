-- What the scripts share that let go of a lock.

-- Makes a write that Redis allows when memory is full, after which it no longer refuses the SET that follows; it leaves the time to
-- live as it is. A key that somebody has made to live for ever gets a day: no lock may outlive everybody who knows of it.
local function keep_ttl()
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl < 0 then ttl = 86400000 elseif ttl == 0 then ttl = 1 end -- 0: in its last millisecond
  redis.call('PEXPIRE', KEYS[1], ttl)
end

-- Tells whoever waits under `token` that it has the lock for `lease` ms, or with 0 that it waits no more; returns how many heard it.
local function tell(token, lease)
  return redis.pcall('PUBLISH', 'dlock:grant:' .. string.sub(token, 1, 20), token .. lease .. '|' .. KEYS[1])
end

-- Makes the first live waiter of `value` the holder and puts `behind` after the last; returns whether there was one. `streak` follows
-- the lease in what it is told. A waiter whose process nobody listens for (PUBLISH says 0) is dead and passed over. A publish that an
-- ACL refuses grants all the same: the waiter learns of it by asking again.
local function hand_over(value, token, grant_lease, behind, streak)
  local width = #token
  local waiters = string.sub(value, width + 1)
  if #waiters == 0 then return false end
  keep_ttl()
  while #waiters >= width do
    local first = string.sub(waiters, 1, width)
    if tell(first, grant_lease .. (streak or '')) ~= 0 then
      redis.call('SET', KEYS[1], waiters .. behind, 'PX', grant_lease)
      return true
    end
    waiters = string.sub(waiters, width + 1)
  end
  return false
end

