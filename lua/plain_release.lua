-- Releases a lock of the plain format and tells the waiters; also undoes an acquire whose answer never came.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV[1]  value: uuid:task-id:generation
-- ARGV[2]  the list of the lockers that wait; empty: all that listen are told
-- ARGV[3]  the locker that releases, 1 if it goes into the list, 1 if it listens to the channel and is not in the list,
--          1 if others may have a turn, and for how long the list is kept, in milliseconds. Or empty
-- Returns n              released, and n clients were told
--         {place, turn}  released, and the next of the list was woken (2: while others listen too), or (1) others
--                        were; how many are before the locker, -1 if it is not there
--         {told, error}  released, and the list cannot be used
--         -1             gone: the lock is not held under this value
local lock, channel = KEYS[1], KEYS[2]
local value, list, unlisted = ARGV[1], ARGV[2], nil

local held = redis.pcall('GET', lock)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  return held
end
-- A key of another type holds no lock of ours.
if held ~= value then
  return -1
end
redis.call('DEL', lock)
-- wake.lua
-- Clients of other languages do not listen, and waiters of this crate do. A user that may not publish has released all
-- the same.
local told = redis.pcall('PUBLISH', channel, '0')
told = type(told) == 'number' and told or 0
return unlisted and {told, unlisted} or told
