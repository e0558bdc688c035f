-- Releases a lock but keeps it taken for a while. The lock then has another field, which no command
-- names: a late renewal and a late copy of this script find nothing. No waiter is notified, since
-- the lock is not free.
-- KEYS[1]  the lock
-- ARGV[1]  how long the lock is kept, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- Returns 0   kept for that long; no client was notified
--         -1  gone: the lock is not held under this field
local lock = KEYS[1]
local rest_ms, field = ARGV[1], ARGV[2]

local held = redis.pcall('HEXISTS', lock, field)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  -- Redis before 7.2 does not say which command it refused.
  held['err'] = held['err'] .. ", refused: 'hexists'"
  return held
end
-- A key of another type is not one of our locks.
if held ~= 1 then
  return -1
end
redis.call('PEXPIRE', lock, rest_ms)
-- A server that is out of memory refuses to write another field: then the lock is kept under this
-- one.
local kept = field .. ':kept'
if type(redis.pcall('HSET', lock, kept, 1)) ~= 'table' then
  redis.call('DEL', lock)
  redis.call('HSET', lock, kept, 1)
  redis.call('PEXPIRE', lock, rest_ms)
end
return 0
