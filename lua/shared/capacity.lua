-- Sets how many permits there are, whatever is taken, and notifies those that wait. May be sent
-- any number of times.
-- KEYS[1]  the counter of free permits
-- KEYS[2]  the records of taken permits
-- ARGV[1]  the capacity
-- ARGV[2]  the lease of the locker, in milliseconds
-- ARGV[3]  the channel of messages about free permits
-- ARGV[4]  '1': only if there is no counter, since others may have taken permits without a record
-- Returns 1  set
--         0  there is a counter
local counter, records = KEYS[1], KEYS[2]
local capacity, slack_ms, channel = ARGV[1], math.floor(ARGV[2] / 10), ARGV[3]

if ARGV[4] == '1' and redis.call('EXISTS', counter) == 1 then
  return 0
end
-- pruned.lua
free = capacity - redis.call('ZCARD', records)
-- Before the counter is written, by users that may do it. A new counter has no end.
-- lifetime.lua
if life == -2 then
  redis.call('PERSIST', records)
  redis.call('SET', counter, free)
else
  redis.call('SET', counter, free, 'KEEPTTL')
end
if free > 0 then
  redis.pcall('PUBLISH', channel, free)
end
return 1
