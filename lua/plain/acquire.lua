-- Takes a lock of the plain format if it is free. Sent at most once per generation; a late or
-- second copy changes only the lease.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share the mark; it never expires
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  value: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the only
--          server
-- Returns {1, fence}  granted
--         {0, ttl}    held by another: milliseconds until its lease runs out, -1 if it has none
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, value, asked = ARGV[1], ARGV[2], ARGV[3]
-- forgotten.lua

local held = redis.pcall('GET', lock)
-- refused.lua
-- A key of another type is somebody else's lock: Redisson's is a hash.
if held and held ~= value then
  return {0, redis.call('PTTL', lock)}
end

-- fence.lua
-- One command writes the value and its lease, so the lock is never without a lease.
redis.call('SET', lock, value, 'PX', lease_ms)
return {1, fence}
