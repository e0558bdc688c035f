-- Takes a lock if it is free. Sent at most once per generation; a late or second copy changes only
-- the lease.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share the mark; it never expires. Or
--          Redisson's token counter
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the only
--          server. -1: KEYS[2] is a token counter, and no clock is used
-- Returns {1, fence}  granted
--         {0, ttl}    held by another: milliseconds until its lease runs out, -1 if it has none
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, field, asked = ARGV[1], ARGV[2], ARGV[3]
-- forgotten.lua

local ttl = redis.call('PTTL', lock)
if ttl ~= -2 and redis.call('HEXISTS', lock, field) == 0 then
  return {0, ttl}
end

-- fence.lua
-- A string: formatting a number costs the server more than HSETNX does.
redis.call('HSETNX', lock, field, '1')
local leased = redis.pcall('PEXPIRE', lock, lease_ms)
if leased == 1 then
  return {1, fence}
end
-- The user may not call PEXPIRE, perhaps not DEL either, but may call SET. No lock must remain
-- without a lease.
if redis.pcall('DEL', lock) ~= 1 then
  redis.call('SET', lock, '', 'PX', 1)
end
-- Redis before 7.2 does not say which command it refused.
if type(leased) == 'table' then
  leased['err'] = leased['err'] .. ", refused: 'pexpire'"
end
return leased
