-- Takes a read-write lock for a writer if it is free. Sent at most once per generation; a late or
-- second copy only raises the lease.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share the mark; it never expires. Or
--          Redisson's token counter
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation:write
-- ARGV[3]  the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the only
--          server. -1: KEYS[2] is a token counter, and no clock is used
-- ARGV[4]  the writers' hint: it exists while a writer waits, and holds its locker
-- ARGV[5]  the locker; empty: this writer does not wait, and sets no hint
-- ARGV[6]  the readers' hint: 'turn' while readers go first
-- ARGV[7]  for how long a refused writer sets its hint, in milliseconds
-- Returns {1, fence}  granted
--         {0, ttl}    held by others, or readers go first: milliseconds until that lease or turn runs
--                     out, -1 if the lock has no lease
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, field, asked = ARGV[1], ARGV[2], ARGV[3]
local writers_hint, locker, readers_hint, hint_ms = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
-- forgotten.lua

-- Hints are not declared: a user without rights to them can still lock.
local ttl, wait_ms = redis.call('PTTL', lock), nil
if ttl == -2 then
  local turn_ms = redis.pcall('GET', readers_hint) == 'turn' and redis.pcall('PTTL', readers_hint)
  wait_ms = type(turn_ms) == 'number' and turn_ms > 0 and turn_ms
elseif redis.call('HEXISTS', lock, field) == 0 then
  wait_ms = ttl
end
if wait_ms then
  if locker ~= '' then
    redis.pcall('SET', writers_hint, locker, 'PX', hint_ms)
  end
  return {0, wait_ms}
end

-- fence.lua
if ttl == -2 then
  redis.call('HSET', lock, 'mode', 'write', field, '1')
  -- leased.lua
-- Never lowered: a reader inside may have a longer lease.
elseif ttl < lease_ms + 0 then
  redis.call('PEXPIRE', lock, lease_ms)
end
if locker ~= '' and redis.pcall('GET', writers_hint) == locker then
  redis.pcall('DEL', writers_hint)
end
return {1, fence}
