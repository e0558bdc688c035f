-- Takes a lock if it is free. Sent at most once per generation; a copy that comes late or twice changes nothing but the lease.
-- KEYS[1]  the lock
-- KEYS[2]  its last fence
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  floor of the fence, in microseconds of the client's clock
-- Returns {1, fence}  granted
--         {0, ttl}    held by another: milliseconds until its lease runs out, -1 if it has none
local lock, last_fence = KEYS[1], KEYS[2]
local lease_ms, field = ARGV[1], ARGV[2]

local ttl = redis.call('PTTL', lock)
if ttl ~= -2 and redis.call('HEXISTS', lock, field) == 0 then
  return {0, ttl}
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
redis.call('HSETNX', lock, field, 1)
local leased = redis.pcall('PEXPIRE', lock, lease_ms)
if leased == 1 then
  return {1, text}
end
-- A user that may not call PEXPIRE, perhaps not DEL either, but SET: a lock must not stand without a lease.
if redis.pcall('DEL', lock) ~= 1 then
  redis.call('SET', lock, '', 'PX', 1)
end
-- Redis before 7.2 does not say which command it refused.
if type(leased) == 'table' then
  leased['err'] = leased['err'] .. ", refused: 'pexpire'"
end
return leased
