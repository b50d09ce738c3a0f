-- What the scripts of Redisson's layout share. A lock is a hash with one field: its owner.

-- Returns whether `owner` holds the lock.
local function held_by(owner)
  return redis.call('HEXISTS', KEYS[1], owner) == 1
end

-- Returns an error where a lock for readers and writers stands under the name: its hash has a field that says which of them hold it.
local function not_an_rlock()
  if redis.call('HEXISTS', KEYS[1], 'mode') == 1 then
    return redis.error_reply("WRONGTYPE an RReadWriteLock of Redisson stands there, which is no RLock")
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

