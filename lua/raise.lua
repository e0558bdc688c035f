-- Raises the last fence of a lock to what another server has given out. Never lowers it.
-- KEYS[1]  the last fence of the lock
-- ARGV[1]  the fence
-- Returns 1
local last_fence = KEYS[1]
local fence = ARGV[1]

local last = tonumber(redis.call('GET', last_fence) or '0') or 0
if last < tonumber(fence) then
  redis.call('SET', last_fence, fence, 'PX', 120000)
end
return 1
