-- Releases a fair lock, or takes a caller out of its queue, and notifies the one that is next. Also
-- undoes an acquire that was never answered. What it removes has a name that is used once.
-- KEYS[1]  the lock
-- KEYS[2]  the queue of tickets
-- KEYS[3]  until when each ticket stands there at least, in milliseconds since 1970
-- ARGV[1]  field: uuid:task-id:generation, or a ticket: uuid:task-id:number:ticket. Empty: nothing
--          is removed, and the next one is notified if the lock is free
-- ARGV[2]  the channel of the lock's unlock messages
-- ARGV[3]  what the channels begin with on which lockers are woken; empty: they are not
-- Returns n   done, and n clients got a message
--         -1  gone: neither has the lock this field nor the queue this ticket
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local field, channel, wakes = ARGV[1], ARGV[2], ARGV[3]
-- call.lua

local held = redis.pcall('HEXISTS', lock, field)
-- refused.lua
if held == 1 then
  redis.call('DEL', lock)
elseif field ~= '' then
  local was_next = redis.call('LINDEX', queue, 0) == field
  local was_there = redis.call('LREM', queue, 1, field) == 1
  redis.call('ZREM', timeouts, field)
  if not was_next then
    return was_there and 0 or -1
  end
end
if held ~= 1 and redis.call('EXISTS', lock) == 1 then
  return 0
end
local function call_next()
  local all = redis.call('LRANGE', queue, 0, -1)
  return call(all[1 + prune(all)])
end
if field == '' then
  return call_next()
end
-- What is released is so, whatever the keys of the queue are.
local is_read, told = pcall(call_next)
return is_read and told or tell(channel)
