-- Notes that a call of a latch has come. Defines `is_first`: whether no copy of it has come before,
-- and `until_ms`. An id that is still remembered has its time.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- Callers remember for different times, so each id has the end of its own.
local until_ms = now_ms + keep_ms
local is_first = redis.call('ZADD', calls, 'NX', until_ms, id) == 1
if is_first then
  redis.call('ZREMRANGEBYSCORE', calls, '-inf', now_ms)
  if redis.call('PTTL', calls) < keep_ms + 0 then
    redis.call('PEXPIRE', calls, keep_ms)
  end
end
