-- Has the key live for `lease` ms at least, and never for less than its present `ttl`. `besides` this it may be told to `write` in any
-- case, for replicas to acknowledge, or to `read` the key last, so that its next change is told.
local function prolong(ttl, lease, besides)
  if ttl < tonumber(lease) then
    redis.call('PEXPIRE', KEYS[1], lease)
  elseif besides == 'write' then
    redis.call('PEXPIRE', KEYS[1], ttl)
  end
  if besides == 'read' then redis.call('PTTL', KEYS[1]) end
end

