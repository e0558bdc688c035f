-- Releases a lock, whoever holds it, and tells the waiters.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- Returns 1  it was held
--         0  it was free
local lock, channel = KEYS[1], KEYS[2]

local deleted = redis.call('DEL', lock)
if deleted == 1 then
  redis.pcall('PUBLISH', channel, '0')
end
return deleted
