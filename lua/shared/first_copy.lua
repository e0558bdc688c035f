-- Notes that a call of a latch has come. Defines `is_first`: whether no copy of it has come before,
-- and `now_ms`. An id that is still remembered has its time.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local is_first = redis.call('ZADD', calls, 'NX', now_ms, id) == 1
if is_first then
  redis.call('ZREMRANGEBYSCORE', calls, '-inf', now_ms - keep_ms)
  redis.call('PEXPIRE', calls, keep_ms)
end
