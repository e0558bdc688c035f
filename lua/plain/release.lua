-- Releases a lock of the plain format and notifies its waiters. Also undoes an acquire that was
-- never answered.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV[1]  value: uuid:task-id:generation
-- ARGV[2]  the list of the lockers that wait; empty: all subscribers of the channel are notified
-- ARGV[3]  the locker that releases, 1 if it goes into the list, 1 if it is subscribed to the
--          channel and not in the list, how long a turn of others would last or 0, and how long the
--          list is kept, both in milliseconds. Or empty
-- Returns n              released, and n clients received the message of the channel
--         {place, turn, others, waiting}
--                        released, and the next locker of the list was woken (turn is 0), or others have a turn, so
--                        long; place: the number of lockers before the one that released, -1 if it is not in the list;
--                        others: how many clients are subscribed that are not in the list, of `waiting` lockers
--         {told, error}  released, and `told` clients received the message of the channel: the list cannot be used
--         -1             gone: the lock is not held under this value
local lock, channel = KEYS[1], KEYS[2]
local value, list, unlisted = ARGV[1], ARGV[2], nil

local held = redis.pcall('GET', lock)
-- refused.lua
-- A key of another type is not one of our locks.
if held ~= value then
  return -1
end
redis.call('DEL', lock)
-- wake.lua
-- Waiters of this crate listen; clients of other languages do not. A user that may not publish has
-- released the lock all the same.
local told = redis.pcall('PUBLISH', channel, '0')
told = type(told) == 'number' and told or 0
return unlisted and {told, unlisted} or told
