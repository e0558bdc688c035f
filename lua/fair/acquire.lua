-- Puts the tickets of a locker's callers into the queue of a fair lock, and takes the lock for the
-- first of them if it is free and that one is next. Sent at most once per generation; a late or
-- second copy takes nothing twice, and puts in again what is missing.
-- KEYS[1]    the lock
-- KEYS[2]    its mark: the last fence of all locks that share the mark; it never expires. Or
--            Redisson's token counter
-- KEYS[3]    the queue of tickets
-- KEYS[4]    until when each ticket stands there at least, in milliseconds since 1970
-- ARGV[1]    lease, in milliseconds
-- ARGV[2]    field: uuid:task-id:generation
-- ARGV[3]    the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the
--            only server. -1: KEYS[2] is a token counter, and no clock is used
-- ARGV[4]    the channel of the lock's unlock messages
-- ARGV[5]    what the channels begin with on which lockers are woken; empty: they are not
-- ARGV[6]    a ticket that does not come although it is next, and is passed: with all tickets of
--            its locker, if it is no JVM's. Empty: none
-- ARGV[7]    how long the tickets stand there without another ask, in milliseconds
-- ARGV[8]    how many tickets, in the order of the callers; 0: this caller does not wait
-- ARGV[8+i]  a ticket: uuid:task-id:number:ticket
-- Returns {1, fence}  granted
--         {0, ttl, place, next, mixed}
--           ttl    milliseconds until the holder's lease runs out, -1 if it has none; -2: the lock
--                  is free, and somebody else is next
--           place  the number of tickets before the first of these callers
--           next   whose turn it is, if the lock is free; or empty
--           mixed  1 if clients of Redisson are in the queue, or one has the lock
local lock, mark, queue, timeouts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease_ms, field, asked = ARGV[1], ARGV[2], ARGV[3]
local channel, wakes, passed, stands_ms, tickets = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8] + 0
-- forgotten.lua
-- call.lua

local ttl = redis.call('PTTL', lock)
local is_copy = ttl ~= -2 and redis.call('HEXISTS', lock, field) == 1
local mine, is_there = {}, {}
for i = 1, tickets do
  mine[i] = ARGV[8 + i]
  is_there[mine[i]] = false
end
-- Those that wait are alive, so their tickets stay. Redisson takes 300 s off every ticket each time
-- that a JVM is granted the lock, or gives up before them.
local all, scored, jvms = redis.call('LRANGE', queue, 0, -1), {}, 0
local stands = now_ms() + stands_ms
for _, ticket in ipairs(all) do
  if is_there[ticket] == false then
    is_there[ticket] = true
    scored[#scored + 1] = stands + jvms * 300000
    scored[#scored + 1] = ticket
  elseif not locker_of(ticket) then
    jvms = jvms + 1
  end
end
if #scored > 0 then
  redis.call('ZADD', timeouts, 'GT', unpack(scored))
end
local first, before = 1 + prune(all), all[1]
if ttl == -2 and passed ~= '' and passed == all[first] then
  local kept, locker = {}, locker_of(passed)
  for at = first, #all do
    -- One of this locker that no caller waits for any more is passed without those that wait.
    local is_of_it = all[at] == passed or locker and locker == locker_of(all[at])
    if is_of_it and is_there[all[at]] == nil then
      redis.call('LREM', queue, 1, all[at])
      redis.call('ZREM', timeouts, all[at])
    else
      kept[#kept + 1] = all[at]
    end
  end
  all, first = kept, 1
end

local head, missing, put = all[first], {}, {}
-- The turn of each is that of all of this locker: its line has an order of its own.
local is_free = is_copy or ttl == -2 and (not head or is_there[head] ~= nil)
for i = is_free and 2 or 1, tickets do
  if not is_there[mine[i]] then
    missing[#missing + 1] = mine[i]
    put[#put + 1] = stands + jvms * 300000
    put[#put + 1] = mine[i]
  end
end
if #put > 0 then
  redis.call('RPUSH', queue, unpack(missing))
  redis.call('ZADD', timeouts, unpack(put))
end

if is_free then
  -- fence.lua
  if is_there[mine[1]] then
    redis.call('LREM', queue, 1, mine[1])
    redis.call('ZREM', timeouts, mine[1])
  end
  redis.call('HSETNX', lock, field, '1')
  -- leased.lua
  return {1, fence}
end
if ttl == -2 and head ~= before then
  call(head)
end
local place = 0
for at = first, #all do
  if is_there[all[at]] then
    break
  end
  place = place + 1
end
local mixed = jvms > 0 or ttl ~= -2 and not locker_of(redis.call('HGETALL', lock)[1] or '')
return {0, ttl, place, ttl == -2 and head or '', mixed and 1 or 0}
