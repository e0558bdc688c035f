-- Takes several locks of the plain format if all of them are free, or none of them. Sent at most
-- once per generation.
-- KEYS[2*i-1]  a lock
-- KEYS[2*i]    its mark: the last fence of all locks that share the mark; it never expires
-- ARGV[1]      lease, in milliseconds
-- ARGV[i+1]    value of the lock: uuid:task-id:generation
-- ARGV[n+2]    the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the
--              only server
-- Returns {1, fence, ...}  granted: one fence per lock
--         {0, ttl}         one is held by another: milliseconds until its lease runs out, -1 if it has none
-- The last of the KEYS may be the server's memory.
local locks, answer = math.floor(#KEYS / 2), {1}
local lease_ms, asked = ARGV[1], ARGV[locks + 2]
-- forgotten.lua

for i = 1, locks do
  local lock, value = KEYS[2 * i - 1], ARGV[i + 1]
  local held = redis.pcall('GET', lock)
  -- refused.lua
  -- A key of another type is somebody else's lock: Redisson's is a hash.
  if held and held ~= value then
    return {0, redis.call('PTTL', lock)}
  end
end

for i = 1, locks do
  local mark = KEYS[2 * i]
  -- fence.lua
  answer[i + 1] = fence
end
-- One command writes a value and its lease, so no lock is ever without a lease.
for i = 1, locks do
  redis.call('SET', KEYS[2 * i - 1], ARGV[i + 1], 'PX', lease_ms)
end
return answer
