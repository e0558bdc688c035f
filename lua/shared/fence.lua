-- Sets `fence` to the next fence of this `mark`, for a client whose clock is `asked`.
-- The first write has to be one that a server refuses when it is out of memory: once a script has
-- written something, the server lets it continue. The mark counts up. If the clock is ahead of the
-- mark, the mark continues from the clock.
local fence, clock_us = nil, asked + 0
if clock_us < 0 then
  -- Only this server gives fences, so its own clock counts. A token counter is never behind -1.
  fence = redis.call('INCR', mark)
  if fence < -clock_us then
    local now = redis.call('TIME')
    clock_us = now[1] * 1000000 + now[2]
  end
else
  -- Each of several servers writes the client's clock. One call is enough if the clock is ahead of
  -- the mark and both are in the same 20 s, as they are for a busy mark. A value counts as a mark
  -- if it is a number with as many digits as the clock.
  local last = redis.call('SET', mark, asked, 'GET')
  local count = last and #last == #asked and tonumber(last)
  if count and count < clock_us and (count + 1) % 20000000 + clock_us - count - 1 < 20000000 then
    fence = clock_us
  else
    redis.call('SET', mark, last or 0)
    fence = redis.call('INCR', mark)
    if fence % 20000000 + clock_us - fence >= 20000000 then
      -- The mark enters another 20 s: the client's clock is clamped to within 20 s of this server's
      -- own.
      local now = redis.call('TIME')
      local now_us = now[1] * 1000000 + now[2]
      clock_us = math.max(math.min(clock_us, now_us + 20000000), now_us - 20000000)
    end
  end
end
if fence < clock_us then
  fence = clock_us
  redis.call('SET', mark, string.format('%.0f', fence))
end
