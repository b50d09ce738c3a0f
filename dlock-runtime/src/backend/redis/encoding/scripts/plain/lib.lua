-- What the scripts of the plain layout share. A value is one token of 32 bytes: its holder. One byte more is read, which shows that a
-- value is longer and therefore not ours.

-- Lets go of the lock, and returns how many heard it. ARGV[2] is what the channels of the lock's namespace begin with. A publish that an ACL refuses frees it all the same: those who wait look again.
local function free()
  redis.call('DEL', KEYS[1])
  local heard = redis.pcall('PUBLISH', ARGV[2] .. KEYS[1], '')
  return type(heard) == 'number' and heard or 0
end

