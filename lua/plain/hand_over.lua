-- Hands a lock of the plain format over: releases it from its holder and takes it for the next one,
-- in one step. Sent once; a late or second copy finds the holder gone.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share the mark; it never expires
-- ARGV[1]  lease of the next holder, in milliseconds
-- ARGV[2]  value of the next holder: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the only
--          server
-- ARGV[4]  value of the holder
-- Returns {1, fence}  handed over: no message is published, since the lock was never free
--         -1          gone: the lock is not held under the holder's value, and nothing is taken
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, value, asked, holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held = redis.pcall('GET', lock)
-- refused.lua
-- A key of another type is not one of our locks.
if held ~= holder then
  return -1
end

-- fence.lua
-- One command writes the value and its lease, so the lock is never without a lease.
redis.call('SET', lock, value, 'PX', lease_ms)
return {1, fence}
