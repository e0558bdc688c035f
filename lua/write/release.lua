-- Releases a read-write lock from a writer, and notifies its waiters. Readers of the same owner
-- that are inside stay: the lock is then one of readers. Also undoes an acquire that was never
-- answered.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV[1]  field: uuid:task-id:generation:write
-- ARGV[2]  the readers' hint: after a reader was refused, how long readers need to come, in
--          milliseconds; 'turn' while they go first
-- Returns n   released, and n clients are subscribed to the channel
--         -1  gone: the lock is not held under this field
local lock, channel = KEYS[1], KEYS[2]
local field, readers_hint = ARGV[1], ARGV[2]

local held = redis.pcall('HDEL', lock, field)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  -- Redis before 7.2 does not say which command it refused.
  held['err'] = held['err'] .. ", refused: 'hdel'"
  return held
end
-- A key of another type is not one of our locks.
if held ~= 1 then
  return -1
end
-- timeouts.lua
local last = 0
if redis.call('HLEN', lock) > 1 then
  local readers = redis.call('HGETALL', lock)
  for i = 1, #readers, 2 do
    last = math.max(last, left(readers[i], readers[i + 1]))
  end
end
if last > 0 then
  redis.call('HSET', lock, 'mode', 'read')
  -- Reading raised the lease of the lock, so it is long enough unless somebody cut it.
  if last < math.huge and redis.call('PTTL', lock) < last then
    redis.pcall('PEXPIRE', lock, last)
  end
else
  redis.call('DEL', lock)
end
-- The hint is not declared: a user without rights to it can still release.
local turn_ms = tonumber(redis.pcall('GET', readers_hint))
if turn_ms and turn_ms > 0 then
  -- No client needs longer: any client could have written it.
  redis.pcall('SET', readers_hint, 'turn', 'PX', math.ceil(math.min(turn_ms, 1000)))
end
-- The message is a hint: a user that may not publish has released the lock all the same.
local told = redis.pcall('PUBLISH', channel, '1')
-- On a JVM, `1` wakes the threads that sleep by then, and `0` also the next one that is about to
-- sleep. Lockers ignore a `0` that is spelled like this.
redis.pcall('PUBLISH', channel, '00')
return type(told) == 'number' and told or 0
