-- Counts a latch down by one. May be sent any number of times and late: only the first copy of a
-- call counts, also if another one finds a later round of the latch.
-- KEYS[1]  the count
-- KEYS[2]  the ids of the calls that have come
-- ARGV[1]  the id of the call
-- ARGV[2]  how long an id is remembered, in milliseconds
-- ARGV[3]  the channel of the latch
-- Returns the count that is left, as text; false if the latch is open
local latch, calls = KEYS[1], KEYS[2]
local id, keep_ms, channel = ARGV[1], ARGV[2], ARGV[3]
-- pending.lua
-- Also if the latch is open: a late copy must not count when it is set.
-- first_copy.lua

if is_first and count then
  if redis.call('DECR', latch) > 0 then
    return redis.call('GET', latch)
  end
  redis.call('DEL', latch)
  redis.pcall('PUBLISH', channel, '0')
  return false
end
return count
