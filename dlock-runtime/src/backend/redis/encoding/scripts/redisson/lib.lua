-- What the scripts of Redisson's layout share. A lock is a hash with one field, its owner, and how often he holds it.

-- Returns whether `owner` holds the lock: a value that is longer than any count is a foreign client's.
local function held_by(owner)
  local length = redis.call('HSTRLEN', KEYS[1], owner)
  return length > 0 and length < 20
end

-- Returns an error if the hash has more fields than the one of an RLock. A lock for readers and writers does: `mode` says which of them
-- hold it. Nothing deletes such a hash: to delete a million fields takes the server seconds.
local function not_an_rlock()
  if redis.call('HLEN', KEYS[1]) > 1 then
    return redis.error_reply("WRONGTYPE a hash of several fields, such as an RReadWriteLock of Redisson, is no RLock")
  end
end

-- Returns an error if the only field or its value is too long for an RLock: to copy or free 512 MB takes longer than a script may. Where
-- an ACL refuses `MEMORY USAGE` it is not known.
local function too_long()
  local size = redis.pcall('MEMORY', 'USAGE', KEYS[1])
  if type(size) == 'number' and size > 65536 then
    return redis.error_reply("WRONGTYPE a hash of more than 64 KiB is no RLock")
  end
end

-- Tells those who wait to try: by `publish`, by `spublish`, by `both`, or, `auto`, by spublish where the server has it. Each Redisson
-- wakes one of its threads for a `0`. Where an ACL refuses it they try again when the time to live is over that they know of.
local function ring(channel, how)
  local told = how ~= 'publish' and redis.pcall('SPUBLISH', channel, '0')
  if how == 'publish' or how == 'both' or (how == 'auto' and type(told) == 'table') then
    redis.pcall('PUBLISH', channel, '0')
  end
end

