-- Takes several locks if all of them are free, or none of them. Sent at most once per generation,
-- like `acquire`.
-- KEYS[2*i-1]  a lock
-- KEYS[2*i]    its mark: the last fence of all locks that share the mark; it never expires. Or
--              Redisson's token counter
-- ARGV[1]      lease, in milliseconds
-- ARGV[i+1]    field of the lock: uuid:task-id:generation
-- ARGV[n+2]    the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the
--              only server. -1: the counters are token counters, and no clock is used
-- Returns {1, fence, ...}  granted: one fence per lock
--         {0, ttl}         one is held by another: milliseconds until its lease runs out, -1 if it has none
-- The last of the KEYS may be the server's memory.
local locks, answer = math.floor(#KEYS / 2), {1}
local lease_ms, asked = ARGV[1], ARGV[locks + 2]
-- forgotten.lua

for i = 1, locks do
  local lock, field = KEYS[2 * i - 1], ARGV[i + 1]
  local ttl = redis.call('PTTL', lock)
  if ttl ~= -2 and redis.call('HEXISTS', lock, field) == 0 then
    return {0, ttl}
  end
end

for i = 1, locks do
  local mark = KEYS[2 * i]
  -- fence.lua
  answer[i + 1] = fence
end
for i = 1, locks do
  local lock, field = KEYS[2 * i - 1], ARGV[i + 1]
  redis.call('HSETNX', lock, field, '1')
  local leased = redis.pcall('PEXPIRE', lock, lease_ms)
  if leased ~= 1 then
    -- The user may not call PEXPIRE, perhaps not DEL either, but may call SET. No lock must remain
    -- without a lease.
    for taken = 1, i do
      if redis.pcall('DEL', KEYS[2 * taken - 1]) ~= 1 then
        redis.call('SET', KEYS[2 * taken - 1], '', 'PX', 1)
      end
    end
    -- Redis before 7.2 does not say which command it refused.
    if type(leased) == 'table' then
      leased['err'] = leased['err'] .. ", refused: 'pexpire'"
    end
    return leased
  end
end
return answer
