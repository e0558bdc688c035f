-- Takes a lock of the plain format if it is free. Sent at most once per generation; a copy that comes late or twice
-- changes nothing but the lease.
-- KEYS[1]  the lock
-- KEYS[2]  its last fence
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  value: uuid:task-id:generation
-- ARGV[3]  floor of the fence, in microseconds of the client's clock
-- Returns {1, fence}  granted
--         {0, ttl}    held by another: milliseconds until its lease runs out, -1 if it has none
local lock, last_fence = KEYS[1], KEYS[2]
local lease_ms, value = ARGV[1], ARGV[2]

local held = redis.pcall('GET', lock)
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  return held
end
-- A key of another type is somebody's too: Redisson's lock is a hash.
if held and held ~= value then
  return {0, redis.call('PTTL', lock)}
end

-- The client's clock counts only within the last minute of this server's own: one bad clock cannot spoil the sequence.
local now = redis.call('TIME')
local now_us, floor_us = now[1] * 1000000 + now[2], tonumber(ARGV[3])
local fence = math.max(math.min(floor_us, now_us), now_us - 60000000)

-- The first write is one that a server without memory refuses; after a first write it lets a script go on.
local text = string.format('%.0f', fence)
local last = tonumber(redis.call('SET', last_fence, text, 'PX', 120000, 'GET') or 0)
if last and last >= fence then
  text = string.format('%.0f', last + 1)
  redis.call('SET', last_fence, text, 'PX', 120000)
end
-- The value and its lease are one write: a lock never stands without a lease.
redis.call('SET', lock, value, 'PX', lease_ms)
return {1, text}
