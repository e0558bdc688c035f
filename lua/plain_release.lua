-- Releases a lock of the plain format and tells the waiters; also undoes an acquire whose answer never came.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV[1]  value: uuid:task-id:generation
-- Returns n   released, and n clients were told
--         -1  gone: the lock is not held under this value
local lock, channel = KEYS[1], KEYS[2]
local value = ARGV[1]

local held = redis.pcall('GET', lock)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  return held
end
-- A key of another type holds no lock of ours.
if held ~= value then
  return -1
end
redis.call('DEL', lock)
-- Clients of other languages do not listen, and waiters of this crate do. A user that may not publish has released all
-- the same.
local told = redis.pcall('PUBLISH', channel, '0')
return type(told) == 'number' and told or 0
