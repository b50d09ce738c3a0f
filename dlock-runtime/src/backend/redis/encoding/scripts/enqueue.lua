-- KEYS[1] lock  ARGV[1] token  ARGV[2] lease in ms  ARGV[3] first | again | peek
-- ARGV[4] additional action, optional
-- -> {1, 0} holder | {2, ttl} queued | {3, ttl} not queued | {0, 0} absent
-- ttl in ms, -1 for none
local token, lease, mode = ARGV[1], ARGV[2], ARGV[3]
local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 then
  if mode == 'again' then return {0, 0} end
  redis.call('SET', KEYS[1], token, 'PX', lease)
  return {1, 0}
end
local value = redis.call('GETRANGE', KEYS[1], '0', '4128')
if mode == 'peek' then return {3, ttl} end
local ours = is_ours(value, token)
local place = ours and place_of(value, token)
if place == 1 then
  extend_ttl(ttl, lease, ARGV[4])
  return {1, 0}
end
if place then return {2, ttl} end
if mode == 'again' then return {0, 0} end
if ours and #value < 4128 then
  redis.call('APPEND', KEYS[1], token)
  return {2, ttl}
end
return {3, ttl}
