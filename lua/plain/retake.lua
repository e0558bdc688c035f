-- Re-acquires a lock of the plain format on a server that lost it while its holder still has a
-- majority. The fence stays the same; the plain format has no hold count.
-- KEYS[1]  the lock
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  value: uuid:task-id:generation
-- Returns 1  the holder has it again
--         0  held by another
local lock = KEYS[1]
local lease_ms, value = ARGV[1], ARGV[2]
-- forgotten.lua

local held = redis.pcall('GET', lock)
-- refused.lua
-- A key of another type is somebody else's lock.
if held and held ~= value then
  return 0
end
redis.call('SET', lock, value, 'PX', lease_ms)
return 1
