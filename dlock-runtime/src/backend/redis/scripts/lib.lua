-- What the scripts share. A value is a row of tokens of one width: the holder, then those who wait, in their order.

-- Returns the value if `token` is its holder.
local function held_by(token)
  local value = redis.call('GET', KEYS[1])
  if value and string.sub(value, 1, #token) == token then return value end
end

-- Returns where `token` stands in `value`: 1 for the holder, nil for nowhere. By position, so that no token matches inside another.
local function place_of(value, token)
  for at = 1, #value, #token do
    if string.sub(value, at, at + #token - 1) == token then return at end
  end
end

-- Returns whether tokens of our kind stand in `value`: a foreign client's value is never touched.
local function is_ours(value, token)
  return #value % #token == 0 and string.sub(value, 1, 4) == string.sub(token, 1, 4)
end

-- Makes the first live waiter of `value` the holder and puts `behind` after the last; returns whether there was one.
-- A waiter whose process nobody listens for (PUBLISH says 0) is dead and passed over. A publish that an ACL refuses grants all the
-- same: the waiter learns of it by asking again. PEXPIRE comes first: after one write that is allowed under maxmemory, Redis no
-- longer refuses the SET.
local function hand_over(value, token, grant_lease, behind)
  local width = #token
  local waiters = string.sub(value, width + 1)
  if #waiters == 0 then return false end
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), 1))
  while #waiters >= width do
    local first = string.sub(waiters, 1, width)
    local told = redis.pcall('PUBLISH', 'dlock:grant:' .. string.sub(first, 1, 20), first .. KEYS[1])
    if told ~= 0 then
      redis.call('SET', KEYS[1], waiters .. behind, 'PX', grant_lease)
      return true
    end
    waiters = string.sub(waiters, width + 1)
  end
  return false
end

