-- Releases a write, and notifies the waiters. Reads of its owner inside of it stay, and others may
-- read beside them. Also undoes an acquire that was never answered.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV[1]  field: uuid:task-id:generation:write
-- ARGV[2]  the hint that a reader waits
-- ARGV[3]  how long the lock is left to readers that wait, in milliseconds
-- Returns n   released, and n clients are subscribed to the channel
--         -1  gone: the lock is not held under this field
local lock, channel = KEYS[1], KEYS[2]
local field, reader, turn_ms = ARGV[1], ARGV[2], ARGV[3]

local held = redis.pcall('HEXISTS', lock, field)
-- refused.lua
-- A key of another type is not one of our locks.
if held ~= 1 then
  return -1
end
redis.call('HDEL', lock, field)
-- living.lua
if living then
  redis.call('HSET', lock, 'mode', 'read')
else
  redis.call('DEL', lock)
end
if redis.pcall('GET', reader) == 'waits' then
  redis.pcall('SET', reader, 'turn', 'PX', turn_ms)
end
-- The message is a hint: a user that may not publish has released the lock all the same.
local told = redis.pcall('PUBLISH', channel, '1')
return type(told) == 'number' and told or 0
