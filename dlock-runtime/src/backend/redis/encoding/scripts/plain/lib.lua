-- Shared by the scripts of the plain encoding. A value is one token of 32 bytes, the holder.
-- Scripts read one byte more, which shows that a value is longer and therefore foreign.

-- Releases the lock, and returns the number of subscribers. ARGV[2] is the prefix of the
-- namespace's channels. If an ACL rejects the publish, the lock is still released, and waiters find
-- out at their next check.
local function free()
  redis.call('DEL', KEYS[1])
  local receivers = redis.pcall('PUBLISH', ARGV[2] .. KEYS[1], '')
  return type(receivers) == 'number' and receivers or 0
end

