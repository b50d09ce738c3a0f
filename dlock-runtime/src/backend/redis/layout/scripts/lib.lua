-- What the scripts share. A value is a row of tokens of one width: the holder, then those who wait, in their order.

-- Returns whether `token` is the holder of `value`.
local function holds(value, token) return value and string.sub(value, 1, #token) == token end

-- Returns the value if `token` is its holder.
local function held_by(token)
  local value = redis.call('GET', KEYS[1])
  if holds(value, token) then return value end
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

