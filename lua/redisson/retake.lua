-- Re-acquires a lock on a server that lost it while its holder still has a majority. The fence
-- stays the same.
-- KEYS[1]  the lock
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  the hold count
-- Returns 1  the holder has it again
--         0  held by another
local lock = KEYS[1]
local lease_ms, field, count = ARGV[1], ARGV[2], ARGV[3]
-- forgotten.lua

if redis.call('EXISTS', lock) == 1 and redis.call('HEXISTS', lock, field) == 0 then
  return 0
end
redis.call('HSET', lock, field, count)
local leased = redis.pcall('PEXPIRE', lock, lease_ms)
if leased == 1 then
  return 1
end
-- The user may not call PEXPIRE. No lock must remain without a lease.
redis.call('DEL', lock)
return leased
