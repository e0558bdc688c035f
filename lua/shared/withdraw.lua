-- Deletes the hint that a writer of this locker waits, and wakes the readers that it kept out.
-- KEYS[1]  the channel of the lock's unlock messages
-- ARGV[1]  the hint
-- ARGV[2]  the locker
-- Returns 1  it was there
--         0  it was not, or is another locker's
local channel = KEYS[1]
local writer, locker = ARGV[1], ARGV[2]

if redis.call('GET', writer) ~= locker then
  return 0
end
redis.call('DEL', writer)
redis.pcall('PUBLISH', channel, '0')
return 1
