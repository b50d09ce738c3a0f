-- Shared by the scripts of Redisson's encoding. A lock is a hash with one field: the owner, with
-- its hold count.

-- Returns whether `owner` holds the lock. A value longer than any count is foreign.
local function held_by(owner)
  local length = redis.call('HSTRLEN', KEYS[1], owner)
  return length > 0 and length < 20
end

-- Returns an error if the hash has more than one field, so it is not an RLock. A read-write lock
-- has several, and `mode` is its state. Such a hash is never deleted: deleting a million fields
-- takes seconds.
local function not_an_rlock()
  if redis.call('HLEN', KEYS[1]) > 1 then
    return redis.error_reply("WRONGTYPE a hash of several fields, such as an RReadWriteLock of Redisson, is no RLock")
  end
end

-- Returns an error if the only field or its value is too long for an RLock: copying or freeing 512
-- MB takes too long for a script. If an ACL rejects `MEMORY USAGE`, the length is unknown.
local function too_long()
  local size = redis.pcall('MEMORY', 'USAGE', KEYS[1])
  if type(size) == 'number' and size > 65536 then
    return redis.error_reply("WRONGTYPE a hash of more than 64 KiB is no RLock")
  end
end

-- Notifies the waiters with `publish`, `spublish`, or `both`; `auto` uses SPUBLISH if the server
-- has it. Each Redisson client wakes one thread for a `0`. If an ACL rejects the publish, waiters
-- retry when the time to live that they know has passed.
local function notify(channel, how)
  local reply = how ~= 'publish' and redis.pcall('SPUBLISH', channel, '0')
  if how == 'publish' or how == 'both' or (how == 'auto' and type(reply) == 'table') then
    redis.pcall('PUBLISH', channel, '0')
  end
end

