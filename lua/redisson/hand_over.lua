-- Hands a lock over: releases it from its holder and takes it for the next one, in one step. Sent
-- once; a late or second copy finds the holder gone.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share the mark; it never expires. Or
--          Redisson's token counter
-- ARGV[1]  lease of the next holder, in milliseconds
-- ARGV[2]  field of the next holder: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the only
--          server. -1: KEYS[2] is a token counter, and no clock is used
-- ARGV[4]  field of the holder
-- Returns {1, fence}  handed over: no message is published, since the lock was never free
--         -1          gone: the lock is not held under the holder's field, and nothing is taken
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, field, asked, holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held = redis.pcall('HEXISTS', lock, holder)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  -- Redis before 7.2 does not say which command it refused.
  held['err'] = held['err'] .. ", refused: 'hexists'"
  return held
end
-- A key of another type is not one of our locks.
if held ~= 1 then
  return -1
end

-- fence.lua
-- DEL and not HDEL: a hand-over calls only what an acquire and a release call, so it needs no
-- rights of its own.
redis.call('DEL', lock)
redis.call('HSETNX', lock, field, '1')
local leased = redis.pcall('PEXPIRE', lock, lease_ms)
if leased == 1 then
  return {1, fence}
end
-- No lock must remain without a lease. The user was allowed to call PEXPIRE when the holder came.
redis.call('DEL', lock)
return leased
