-- Writes the hold count of a re-entered hold. The count is absolute, so a second copy of the
-- command does no harm.
-- KEYS[1]  the lock
-- ARGV[1]  field: uuid:task-id:generation
-- ARGV[2]  the hold count
-- Returns 1  written
--         0  gone: the lock is not held under this field
local lock = KEYS[1]
local field, count = ARGV[1], ARGV[2]

local held = redis.pcall('HEXISTS', lock, field)
-- refused.lua
-- A key of another type is not one of our locks.
if held ~= 1 then
  return 0
end
redis.call('HSET', lock, field, count)
return 1
