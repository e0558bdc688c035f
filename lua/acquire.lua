-- Takes a lock if it is free. Sent at most once per generation; a late or second copy changes only the lease.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share it, without a lifetime. Or Redisson's count of tokens
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: it is cut to 0.1 s, and this server is the only one.
--          -1: of tokens, and it counts for nothing
-- Returns {1, fence}  granted
--         {0, ttl}    held by another: milliseconds until its lease runs out, -1 if it has none
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, field, asked = ARGV[1], ARGV[2], ARGV[3]

local ttl = redis.call('PTTL', lock)
if ttl ~= -2 and redis.call('HEXISTS', lock, field) == 0 then
  return {0, ttl}
end

-- fence.lua
-- A text: to print a number takes the server longer than HSETNX does.
redis.call('HSETNX', lock, field, '1')
local leased = redis.pcall('PEXPIRE', lock, lease_ms)
if leased == 1 then
  return {1, fence}
end
-- A user that may not call PEXPIRE, perhaps not DEL either, but SET: a lock must not stand without a lease.
if redis.pcall('DEL', lock) ~= 1 then
  redis.call('SET', lock, '', 'PX', 1)
end
-- Redis before 7.2 does not say which command it refused.
if type(leased) == 'table' then
  leased['err'] = leased['err'] .. ", refused: 'pexpire'"
end
return leased
