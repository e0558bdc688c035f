-- Releases a read-write lock from a reader, and notifies its waiters if it was the last one. Also
-- undoes an acquire that was never answered.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- KEYS[3]  the reader's timeout key
-- ARGV[1]  field: uuid:task-id:generation
-- Returns n   released: n clients are subscribed to the channel if the lock is free, and 0 if
--             others hold it
--         -1  gone: the lock is not held under this field
local lock, channel, timeout = KEYS[1], KEYS[2], KEYS[3]
local field = ARGV[1]

local held = redis.pcall('HDEL', lock, field)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  -- Redis before 7.2 does not say which command it refused.
  held['err'] = held['err'] .. ", refused: 'hdel'"
  return held
end
-- It may outlive the lock. Without the field it has no meaning.
redis.pcall('DEL', timeout)
-- A key of another type is not one of our locks.
if held ~= 1 then
  return -1
end
-- One field is the mode. Beside more than 64 readers, one of them most likely lives, and asking for
-- all of them would take long.
local fields = redis.call('HLEN', lock)
if fields > 65 then
  return 0
end
if fields > 1 then
  -- timeouts.lua
  -- It was inside a write hold.
  if redis.call('HGET', lock, 'mode') == 'write' then
    return 0
  end
  local holders, ttl, last = redis.call('HGETALL', lock), redis.call('PTTL', lock), 0
  for i = 1, #holders, 2 do
    last = math.max(last, left(holders[i], holders[i + 1]))
    -- Readers of one lease have more than half of it left. Only where leases differ, or readers are
    -- dead, is it worth asking for all of them.
    if last * 2 > ttl then
      return 0
    end
  end
  if last > 0 then
    -- This reader had the longest lease by far, and no other client needs it.
    redis.pcall('PEXPIRE', lock, last)
    return 0
  end
end
redis.call('DEL', lock)
-- The message is a hint: a user that may not publish has released the lock all the same.
local told = redis.pcall('PUBLISH', channel, '0')
return type(told) == 'number' and told or 0
