-- What the scripts share. A value is a row of tokens of one width: the holder, then those who wait, in their order.
--
-- At most 4,129 bytes of a value are read: the holder and a full queue are 129 tokens of 32 bytes, and one byte more shows that a value
-- is longer and therefore not ours. Otherwise a client could make a script run for minutes by appending to a lock. GETRANGE returns ''
-- for an absent key as for an empty string; PTTL tells them apart (-2).

-- Returns whether `token` is the holder of `value`.
local function holds(value, token) return #value <= 4128 and string.sub(value, 1, #token) == token end

-- Returns the value if `token` is its holder.
local function held_by(token)
  local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
  if holds(value, token) then return value end
end

-- Returns where `token` stands in `value`: 1 for the holder, nil for nowhere. By position, so that no token matches inside another.
local function place_of(value, token)
  for at = 1, #value, #token do
    if string.sub(value, at, at + #token - 1) == token then return at end
  end
end

-- Returns whether tokens of our kind stand in `value`, and no more than a full queue has: a foreign client's value is never touched.
local function is_ours(value, token)
  return #value <= 4128 and #value % #token == 0 and string.sub(value, 1, 4) == string.sub(token, 1, 4)
end

