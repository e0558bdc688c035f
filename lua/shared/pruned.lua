-- Removes the members that ran out, and makes their permits free. Defines `now`, in whole
-- milliseconds, `free`, which is nil without a counter, and `raised`: whether the counter was.
-- Redisson's clients write scores by their own clocks, so members stay for `slack_ms` longer.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local raised = false
-- free.lua
local over = redis.call('ZCOUNT', records, '-inf', now - slack_ms)
if over > 0 then
  -- First: a full server refuses the first write of a script only, and a user without a right to
  -- this must not destroy the permits of others.
  if free then
    redis.call('INCRBY', counter, over)
  end
  local removed = redis.pcall('ZREMRANGEBYSCORE', records, '-inf', now - slack_ms)
  if type(removed) == 'table' then
    if free then
      redis.call('INCRBY', counter, -over)
    end
    return removed
  end
  if free then
    free, raised = free + over, true
  end
end
