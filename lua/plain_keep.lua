-- Leaves a lock of the plain format standing that its holder has released, for a rest of time. It has another value
-- then, which no command names: a renewal or a copy of this that comes late finds nothing. It is not free, so that
-- nobody is told.
-- KEYS[1]  the lock
-- ARGV[1]  for how long it stands yet, in milliseconds
-- ARGV[2]  value: uuid:task-id:generation
-- Returns 0   it stands for that long, and nobody was told
--         -1  gone: the lock is not held under this value
local lock = KEYS[1]
local rest_ms, value = ARGV[1], ARGV[2]

local held = redis.pcall('GET', lock)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  return held
end
-- A key of another type holds no lock of ours.
if held ~= value then
  return -1
end
-- A server without memory refuses to write another value: then it stands under this one.
if redis.pcall('SET', lock, value .. ':kept', 'PX', rest_ms)['err'] then
  redis.call('PEXPIRE', lock, rest_ms)
end
return 0
