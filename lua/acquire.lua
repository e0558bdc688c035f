-- Takes a lock if it is free. Sent at most once per generation; a copy that comes late or twice changes nothing but the lease.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share it, without a lifetime
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: it is cut to 0.1 s, and this server is the only one
-- Returns {1, fence}  granted
--         {0, ttl}    held by another: milliseconds until its lease runs out, -1 if it has none
local lock, mark = KEYS[1], KEYS[2]
local lease_ms, field = ARGV[1], ARGV[2]

local ttl = redis.call('PTTL', lock)
if ttl ~= -2 and redis.call('HEXISTS', lock, field) == 0 then
  return {0, ttl}
end

-- The first write is one that a server without memory refuses; after a first write it lets a script go on.
-- The mark counts up. Where a clock is ahead of it, it goes on from there.
local fence, clock_us = redis.call('INCR', mark), tonumber(ARGV[3])
if fence < -clock_us then
  -- This server alone gives fences, and its own clock counts.
  local now = redis.call('TIME')
  clock_us = now[1] * 1000000 + now[2]
elseif fence % 20000000 + clock_us - fence >= 20000000 then
  -- The mark enters another 20 s, and the client's clock counts within 20 s of this server's own.
  local now = redis.call('TIME')
  local now_us = now[1] * 1000000 + now[2]
  clock_us = math.max(math.min(clock_us, now_us + 20000000), now_us - 20000000)
end
if fence < clock_us then
  fence = clock_us
  redis.call('SET', mark, string.format('%.0f', fence))
end
redis.call('HSETNX', lock, field, 1)
local leased = redis.pcall('PEXPIRE', lock, lease_ms)
if leased == 1 then
  return {1, fence}
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
