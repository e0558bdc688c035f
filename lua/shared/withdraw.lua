-- Takes back the hint that a writer of this locker waits: none does any more. Notifies the readers
-- that let it go first.
-- KEYS[1]  the channel of the lock's unlock messages
-- ARGV[1]  the writers' hint: it exists while a writer waits, and holds its locker
-- ARGV[2]  the locker
-- Returns 1  it was this locker's
--         0  there was none, or another locker's
local channel = KEYS[1]
local writers_hint, locker = ARGV[1], ARGV[2]

-- The hint is not declared: a user without rights to it never set it.
if redis.pcall('GET', writers_hint) ~= locker then
  return 0
end
redis.pcall('DEL', writers_hint)
redis.pcall('PUBLISH', channel, '0')
return 1
