-- Makes `fence`, the next one of this `mark`, where a client has `asked` with its clock.
-- The first write is one that a server without memory refuses; after a first write it lets a script go on.
-- The mark counts up. Where a clock is ahead of it, it goes on from there.
local fence, clock_us = nil, asked + 0
if clock_us < 0 then
  -- This server alone gives fences, and its own clock counts. No count of tokens is behind -1.
  fence = redis.call('INCR', mark)
  if fence < -clock_us then
    local now = redis.call('TIME')
    clock_us = now[1] * 1000000 + now[2]
  end
else
  -- Each of several servers writes the client's clock. One call does where it is ahead of the mark, within the same
  -- 20 s, as that of a busy mark is. A text that is as long as the clock, and a number, is taken for a mark.
  local last = redis.call('SET', mark, asked, 'GET')
  local count = last and #last == #asked and tonumber(last)
  if count and count < clock_us and (count + 1) % 20000000 + clock_us - count - 1 < 20000000 then
    fence = clock_us
  else
    redis.call('SET', mark, last or 0)
    fence = redis.call('INCR', mark)
    if fence % 20000000 + clock_us - fence >= 20000000 then
      -- The mark enters another 20 s, and the client's clock counts within 20 s of this server's own.
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
