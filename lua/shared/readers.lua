-- Reports who holds a read-write lock: owners of this crate or of Redisson.
-- KEYS[1]  the lock
-- Returns {}    free
--         {mode, ttl, field, count, left, ..}
--               held: 'read' or 'write'; milliseconds until the lease of the lock runs out, -1 if it
--               has none; and for each holder its field, which may be any bytes, its hold count,
--               and for how many milliseconds it holds, 0 for a dead reader and -1 if that cannot
--               be told
--         type  the key is no read-write lock: its type, as TYPE returns it
local lock = KEYS[1]

local kind = redis.call('TYPE', lock)['ok']
if kind == 'none' then
  return {}
end
local mode = kind == 'hash' and redis.call('HGET', lock, 'mode')
if mode ~= 'read' and mode ~= 'write' then
  return kind
end
-- timeouts.lua
local ttl = redis.call('PTTL', lock)
local found, fields = {mode, ttl}, redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  local field, count = fields[i], fields[i + 1]
  if field ~= 'mode' then
    local left_ms = ttl
    if string.sub(field, -6) ~= ':write' then
      left_ms = left(field, count)
    end
    found[#found + 1] = field
    found[#found + 1] = tonumber(count) or 1
    found[#found + 1] = left_ms < math.huge and left_ms or -1
  end
end
return found
