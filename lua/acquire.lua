-- Takes a lock if it is free. Sent at most once per generation; a copy that comes late or twice changes nothing but the lease.
-- KEYS[1]  the lock
-- KEYS[2]  its last fence
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  floor of the fence, in microseconds of the client's clock
-- Returns {1, fence}  granted
--         {0, ttl}    held by another: milliseconds until its lease runs out, -1 if it has none
local lock, last_fence = KEYS[1], KEYS[2]
local lease_ms, field, floor_us = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('EXISTS', lock) == 1 and redis.call('HEXISTS', lock, field) == 0 then
  return {0, redis.call('PTTL', lock)}
end

-- The client's clock counts only within the last minute of this server's own: one bad clock cannot spoil the sequence.
local now = redis.call('TIME')
local now_us = now[1] * 1000000 + now[2]
local fence = math.max(math.min(floor_us, now_us), now_us - 60000000)
fence = math.max(fence, (tonumber(redis.call('GET', last_fence) or '0') or 0) + 1)

-- The first write is one that a server without memory refuses; after a first write it lets a script go on.
redis.call('SET', last_fence, string.format('%.0f', fence), 'PX', 120000)
-- On a free lock this does nothing but find out whether PEXPIRE is permitted: a lock must not come to stand without a lease.
redis.call('PEXPIRE', lock, lease_ms)
redis.call('HSETNX', lock, field, 1)
redis.call('PEXPIRE', lock, lease_ms)
return {1, string.format('%.0f', fence)}
