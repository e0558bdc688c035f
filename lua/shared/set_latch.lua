-- Sets the count of a latch that is open. May be sent any number of times and late: only the first
-- copy of a call sets it, and all have the same answer.
-- KEYS[1]  the count
-- KEYS[2]  the ids of the calls that have come, and those of the calls that have set the latch
-- ARGV[1]  the id of the call
-- ARGV[2]  how long an id is remembered, in milliseconds
-- ARGV[3]  the channel of the latch
-- ARGV[4]  the count
-- Returns 1  this call has set it
--         0  it was set by another
local latch, calls = KEYS[1], KEYS[2]
local id, keep_ms, channel = ARGV[1], ARGV[2], ARGV[3]
local has_set = id .. ':set'
-- pending.lua
-- first_copy.lua

if is_first and not count then
  redis.call('SET', latch, ARGV[4])
  redis.call('ZADD', calls, until_ms, has_set)
  -- For waiters of Redisson, which remember that the latch was open.
  redis.pcall('PUBLISH', channel, '1')
  return 1
end
return redis.call('ZMSCORE', calls, has_set)[1] and 1 or 0
