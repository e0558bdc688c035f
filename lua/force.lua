-- Releases a lock, whoever holds it, and tells the waiters. What cannot be a lock stays.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- Returns 1     it was held
--         0     it was free
--         type  something else has this name: the type of the key, as TYPE tells it
local lock, channel = KEYS[1], KEYS[2]

local kind = redis.call('TYPE', lock)['ok']
if kind == 'none' then
  return 0
end
if kind == 'hash' then
  local holders, others = 0, 0
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    -- This crate's owners and Redisson's begin with a uuid, and have a hold count.
    if string.match(field, '^[%x-]+():') == 37 and string.match(value, '^%d+$') then
      holders = holders + 1
    -- Redisson's read-write lock keeps its mode beside its holders.
    elseif field ~= 'mode' or (value ~= 'read' and value ~= 'write') then
      others = others + 1
    end
  end
  if holders == 0 or others > 0 then
    return kind
  end
elseif kind ~= 'string' then
  return kind
end
redis.call('DEL', lock)
redis.pcall('PUBLISH', channel, '0')
return 1
