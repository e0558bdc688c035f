-- Takes a lock if it is free.
-- KEYS[1]  the lock
-- KEYS[2]  its mark
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds
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
redis.call('HSET', lock, field, 1)
redis.call('PEXPIRE', lock, lease_ms)
return {1, fence}
