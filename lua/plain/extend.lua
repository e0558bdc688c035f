-- Restarts the lease of a lock of the plain format, unless more than that is left of it: so a late
-- or second copy shortens nothing. Never creates a lock.
-- KEYS[1]  the lock
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  value: uuid:task-id:generation
-- Returns 1  the lease is at least that long
--         0  the lock is not held under this value
local lock = KEYS[1]
local lease_ms, value = ARGV[1], ARGV[2]

local held = redis.pcall('GET', lock)
-- refused.lua
-- A key of another type is somebody else's lock.
if held ~= value then
  return 0
end
if redis.call('PTTL', lock) < lease_ms + 0 then
  redis.call('PEXPIRE', lock, lease_ms)
end
return 1
