-- Releases a read, and notifies the waiters if nobody else has the lock. Also undoes an acquire that
-- was never answered.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- KEYS[3]  the timeout of this reader
-- ARGV[1]  field: uuid:task-id:generation
-- Returns n   released: n clients are subscribed to the channel, or 0 if others have the lock
--         -1  gone: the lock is not held under this field
local lock, channel, timeout = KEYS[1], KEYS[2], KEYS[3]
local field = ARGV[1]

-- Whatever is found below, nobody may take this reader for alive.
redis.call('DEL', timeout)
local held = redis.pcall('HEXISTS', lock, field)
-- refused.lua
-- A key of another type is not one of our locks.
if held ~= 1 then
  return -1
end
redis.call('HDEL', lock, field)
-- The write hold inside which it has read is still there.
if redis.call('HGET', lock, 'mode') == 'write' then
  return 0
end
-- living.lua
if living then
  return 0
end
-- Readers that died go with it.
redis.call('DEL', lock)
-- The message is a hint: a user that may not publish has released the lock all the same.
local told = redis.pcall('PUBLISH', channel, '0')
return type(told) == 'number' and told or 0
