-- Raises the mark of a lock of the plain format to a fence that another server gave for the lock.
-- Never lowers it.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share the mark
-- ARGV[1]  value: uuid:task-id:generation
-- ARGV[2]  the fence
-- Returns 1   the mark is at least the fence
--         0   gone: the lock is not held under this value
--         -1  the fence is more than 30 days ahead of this server's clock, so it cannot be one
local lock, mark = KEYS[1], KEYS[2]
local value, fence = ARGV[1], ARGV[2]

local held = redis.pcall('GET', lock)
-- refused.lua
-- A key of another type is not one of our locks.
if held ~= value then
  return 0
end
if tonumber(redis.call('GET', mark) or 0) >= tonumber(fence) then
  return 1
end
if tonumber(fence) > redis.call('TIME')[1] * 1000000 + 2592000000000 then
  return -1
end
redis.call('SET', mark, fence)
return 1
