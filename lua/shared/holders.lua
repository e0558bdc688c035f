-- Names the holders of a lock, for force_unlock: of this crate, of Redisson, or a client of the
-- plain format.
-- KEYS[1]  the lock
-- Returns {name, ..}  each holder by the SHA-1 of its field or value, which may be any bytes; none
-- if the lock is free
--         type        the key is not a lock: its type, as TYPE returns it
local lock = KEYS[1]

local kind = redis.call('TYPE', lock)['ok']
if kind == 'none' then
  return {}
end
if kind == 'string' then
  return {redis.sha1hex(redis.call('GET', lock))}
end
if kind ~= 'hash' then
  return kind
end
local names, others = {}, 0
local fields = redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  -- Owners of this crate and of Redisson begin with a uuid, and have a hold count.
  if string.match(field, '^[%x-]+():') == 37 and string.match(value, '^%d+$') then
    names[#names + 1] = redis.sha1hex(field)
  -- Redisson's read-write lock keeps its mode in the same hash as its holders.
  elseif field ~= 'mode' or (value ~= 'read' and value ~= 'write') then
    others = others + 1
  end
end
if #names == 0 or others > 0 then
  return kind
end
return names
