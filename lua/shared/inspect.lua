-- Reports who holds a lock: an owner of this crate or of Redisson, or a client of the plain format.
-- KEYS[1]  the lock
-- Returns {}                  free
--         {ttl, owner, count}  held: milliseconds until the lease runs out, -1 if it has none; the owner as it stands
--                             there, any bytes; the hold count
--         type                the key is not a lock: its type, as TYPE returns it
local lock = KEYS[1]

local kind = redis.call('TYPE', lock)['ok']
if kind == 'none' then
  return {}
end
if kind ~= 'string' and kind ~= 'hash' then
  return kind
end
local ttl = redis.call('PTTL', lock)
if kind == 'string' then
  return {ttl, redis.call('GET', lock), 1}
end
-- Redisson's read-write lock keeps its mode in the same hash as its holders.
local fields = redis.call('HGETALL', lock)
local at = (fields[1] == 'mode' and fields[3]) and 3 or 1
return {ttl, fields[at], tonumber(fields[at + 1]) or 1}
