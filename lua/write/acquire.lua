-- Takes a lock for writing, if nobody has it. Sent at most once per generation; a late or second
-- copy changes only the lease.
-- KEYS[1]  the lock: a hash with its mode and a field for each holder
-- KEYS[2]  its mark: the last fence of all locks that share the mark; it never expires. Or
--          Redisson's token counter
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation:write
-- ARGV[3]  the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the only
--          server. -1: KEYS[2] is a token counter, and no clock is used
-- ARGV[4]  the hint that a writer waits: the id of its locker
-- ARGV[5]  the locker of a writer that waits if it is refused, or empty
-- ARGV[6]  the hint that a reader waits, or that it is the readers' turn
-- ARGV[7]  how long the writer's hint lasts, in milliseconds
-- Returns {1, fence}  granted
--         {0, ttl}    held by others, or left to readers: milliseconds until that is over, -1 if it has no end
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, field, asked = ARGV[1], ARGV[2], ARGV[3]
local writer, locker, reader, hint_ms = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
-- forgotten.lua

local ttl, refused = redis.call('PTTL', lock), nil
if ttl == -2 then
  local left = redis.pcall('GET', reader) == 'turn' and redis.pcall('PTTL', reader) or 0
  if type(left) == 'number' and left > 0 then
    refused = left
  end
elseif redis.call('HEXISTS', lock, field) == 0 then
  refused = ttl
end
if refused then
  if locker ~= '' then
    redis.pcall('SET', writer, locker, 'PX', hint_ms)
  end
  return {0, refused}
end

-- fence.lua
redis.call('HSETNX', lock, 'mode', 'write')
redis.call('HSETNX', lock, field, '1')
-- Its owner may read inside of it with a longer lease.
local leased = ttl < lease_ms + 0 and redis.pcall('PEXPIRE', lock, lease_ms) or 1
if leased == 1 then
  if locker ~= '' and redis.pcall('GET', writer) == locker then
    redis.pcall('DEL', writer)
  end
  return {1, fence}
end
-- No lock must remain without a lease. The user may not call PEXPIRE, perhaps not DEL either, but
-- may call SET.
if redis.pcall('DEL', lock) ~= 1 then
  redis.call('SET', lock, '', 'PX', 1)
end
-- Redis before 7.2 does not say which command it refused.
if type(leased) == 'table' then
  leased['err'] = leased['err'] .. ", refused: 'pexpire'"
end
return leased
