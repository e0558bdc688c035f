-- Leaves a lock standing that its holder has released, for a rest of time. It stands under another field then, which no
-- command names: a renewal or a copy of this that comes late finds nothing. It is not free, so that nobody is told.
-- KEYS[1]  the lock
-- ARGV[1]  for how long it stands yet, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- Returns 0   it stands for that long, and nobody was told
--         -1  gone: the lock is not held under this field
local lock = KEYS[1]
local rest_ms, field = ARGV[1], ARGV[2]

local held = redis.pcall('HEXISTS', lock, field)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  -- Redis before 7.2 does not say which command it refused.
  held['err'] = held['err'] .. ", refused: 'hexists'"
  return held
end
-- A key of another type holds no lock of ours.
if held ~= 1 then
  return -1
end
redis.call('PEXPIRE', lock, rest_ms)
-- A server without memory refuses to write another field: then it stands under this one.
local kept = field .. ':kept'
if type(redis.pcall('HSET', lock, kept, 1)) ~= 'table' then
  redis.call('DEL', lock)
  redis.call('HSET', lock, kept, 1)
  redis.call('PEXPIRE', lock, rest_ms)
end
return 0
