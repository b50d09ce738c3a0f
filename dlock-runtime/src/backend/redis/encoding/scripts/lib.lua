-- Shared by all scripts. A value is a sequence of tokens of equal width: the holder, then the
-- waiters in order.
--
-- Scripts read at most 4,129 bytes of a value. The holder and a full queue are 129 tokens of 32
-- bytes; one byte more shows that a value is longer and therefore foreign. Otherwise a client could
-- make a script run for minutes by appending to a lock. GETRANGE returns '' for an absent key and
-- for an empty string; PTTL distinguishes them (-2 if absent).

-- Returns whether `token` is the holder in `value`.
local function holds(value, token) return #value <= 4128 and string.sub(value, 1, #token) == token end

-- Returns the value if `token` is its holder.
local function held_by(token)
  local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
  if holds(value, token) then return value end
end

-- Returns the position of `token` in `value`: 1 for the holder, nil if absent. Steps by token
-- width, so that no token matches inside another.
local function place_of(value, token)
  for at = 1, #value, #token do
    if string.sub(value, at, at + #token - 1) == token then return at end
  end
end

-- Returns whether `value` consists of dlock tokens, at most a full queue. Foreign values are never
-- changed.
local function is_ours(value, token)
  return #value <= 4128 and #value % #token == 0 and string.sub(value, 1, 4) == string.sub(token, 1, 4)
end

