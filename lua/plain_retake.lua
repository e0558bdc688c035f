-- Takes the vote of a server back that has lost the lock of a holder, who holds it on a majority of the others: in the plain
-- format, which has no hold count. Its fence stays.
-- KEYS[1]  the lock
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  value: uuid:task-id:generation
-- Returns 1  it holds again
--         0  held by another
local lock = KEYS[1]
local lease_ms, value = ARGV[1], ARGV[2]

local held = redis.pcall('GET', lock)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  return held
end
-- A key of another type is somebody's too.
if held and held ~= value then
  return 0
end
redis.call('SET', lock, value, 'PX', lease_ms)
return 1
