-- Hands a lock over: releases it from its holder and takes it for the next one, in one step. Sent once; a copy that
-- comes late or twice finds it gone.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share it, without a lifetime. Or Redisson's count of tokens
-- ARGV[1]  lease of the next one, in milliseconds
-- ARGV[2]  field of the next one: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: it is cut to 0.1 s, and this server is the only one.
--          -1: of tokens, and it counts for nothing
-- ARGV[4]  field of the holder
-- Returns {1, fence}  handed over: nobody is told, since it was never free
--         -1          gone: the lock is not held under the holder's field, and nothing is taken
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, field, asked, holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held = redis.pcall('HEXISTS', lock, holder)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  -- Redis before 7.2 does not say which command it refused.
  held['err'] = held['err'] .. ", refused: 'hexists'"
  return held
end
-- A key of another type holds no lock of ours.
if held ~= 1 then
  return -1
end

-- fence.lua
-- DEL and not HDEL: a hand-over calls what an acquire and a release call, and needs no right of its own.
redis.call('DEL', lock)
redis.call('HSETNX', lock, field, '1')
local leased = redis.pcall('PEXPIRE', lock, lease_ms)
if leased == 1 then
  return {1, fence}
end
-- A lock must not stand without a lease. Its user could call PEXPIRE when the holder came.
redis.call('DEL', lock)
return leased
