-- Takes a lock for reading, together with other readers. Sent at most once per generation; a late
-- or second copy changes only the leases.
-- KEYS[1]  the lock: a hash with its mode and a field for each holder
-- KEYS[2]  its mark: the last fence of all locks that share the mark; it never expires. Or
--          Redisson's token counter
-- KEYS[3]  the timeout of this reader: it is there while the reader lives
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the only
--          server. -1: KEYS[2] is a token counter, and no clock is used
-- ARGV[4]  the field of the write hold inside which it reads, or empty
-- ARGV[5]  the hint that a writer waits; empty: the reader does not leave the lock to it
-- ARGV[6]  the hint that a reader waits, or that it is the readers' turn
-- ARGV[7]  how long a reader that is refused waits, in milliseconds; empty: not at all
-- Returns {1, fence}  granted
--         {0, ttl}    held by a writer, or left to one: milliseconds until that is over, -1 if it has no end
local lock, mark, timeout = KEYS[1], KEYS[2], KEYS[3]
local lease_ms, field, asked, inside = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local writer, reader, hint_ms = ARGV[5], ARGV[6], ARGV[7]
-- forgotten.lua

local ttl = redis.call('PTTL', lock)
if ttl == -2 or redis.call('HEXISTS', lock, field) == 0 then
  local refused = nil
  -- A hash without a mode is another kind of lock.
  if ttl ~= -2 and redis.call('HGET', lock, 'mode') ~= 'read'
    and (inside == '' or redis.call('HEXISTS', lock, inside) == 0) then
    refused = ttl
  elseif writer ~= '' then
    -- Hints refuse nothing that they cannot be asked about.
    local left = redis.pcall('PTTL', writer)
    if type(left) == 'number' and left > 0 and redis.pcall('GET', reader) ~= 'turn' then
      refused = left
    end
  end
  if refused then
    if hint_ms ~= '' then
      redis.pcall('SET', reader, 'waits', 'PX', hint_ms)
    end
    return {0, refused}
  end
end

-- fence.lua
redis.call('HSETNX', lock, 'mode', 'read')
redis.call('HSETNX', lock, field, '1')
local leased = redis.pcall('SET', timeout, '1', 'PX', lease_ms)
-- Other readers may have longer leases.
if not leased['err'] and ttl < lease_ms + 0 then
  leased = redis.pcall('PEXPIRE', lock, lease_ms)
end
if type(leased) == 'number' or not leased['err'] then
  return {1, fence}
end
-- No lock must remain without a lease.
redis.pcall('DEL', timeout)
if ttl ~= -2 then
  redis.call('HDEL', lock, field)
elseif redis.pcall('DEL', lock) ~= 1 then
  redis.call('SET', lock, '', 'PX', 1)
end
return leased
