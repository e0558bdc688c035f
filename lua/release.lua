-- Releases a lock and tells the waiters; also undoes an acquire whose answer never came.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV[1]  field: uuid:task-id:generation
-- Returns n   released, and n clients were told
--         -1  gone: the lock is not held under this field
local lock, channel = KEYS[1], KEYS[2]
local field = ARGV[1]

local held = redis.pcall('HEXISTS', lock, field)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  -- Redis before 7.2 does not say which command it refused.
  held['err'] = held['err'] .. ", refused: 'hexists'"
  return held
end
-- A key of another type holds no lock of ours.
if held ~= 1 then
  return -1
end
redis.call('DEL', lock)
-- The message is a hint; a user that may not publish has released all the same.
local told = redis.pcall('PUBLISH', channel, '0')
return type(told) == 'number' and told or 0
