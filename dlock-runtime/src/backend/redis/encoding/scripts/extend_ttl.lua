-- Extends the time to live to at least `lease` ms, never below the present `ttl`. The last argument
-- is an additional action: `write` writes in any case, for replicas to acknowledge; `read` reads
-- the key last, so that its next change is tracked.
local function extend_ttl(ttl, lease, also)
  if ttl < tonumber(lease) then
    redis.call('PEXPIRE', KEYS[1], lease)
  elseif also == 'write' then
    redis.call('PEXPIRE', KEYS[1], ttl)
  end
  if also == 'read' then redis.call('PTTL', KEYS[1]) end
end

