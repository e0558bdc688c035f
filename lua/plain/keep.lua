-- Releases a lock of the plain format but keeps it taken for a while. The lock then has another
-- value, which no command names: a late renewal and a late copy of this script find nothing. No
-- waiter is notified, since the lock is not free.
-- KEYS[1]  the lock
-- ARGV[1]  how long the lock is kept, in milliseconds
-- ARGV[2]  value: uuid:task-id:generation
-- Returns 0   kept for that long; no client was notified
--         -1  gone: the lock is not held under this value
local lock = KEYS[1]
local rest_ms, value = ARGV[1], ARGV[2]

local held = redis.pcall('GET', lock)
-- refused.lua
-- A key of another type is not one of our locks.
if held ~= value then
  return -1
end
-- A server that is out of memory refuses to write another value: then the lock is kept under this
-- one.
if redis.pcall('SET', lock, value .. ':kept', 'PX', rest_ms)['err'] then
  redis.call('PEXPIRE', lock, rest_ms)
end
return 0
