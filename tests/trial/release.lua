-- Releases a lock and notifies its waiters.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV[1]  field: uuid:task-id:generation
-- ARGV[2]  the list of the lockers that wait; empty: all subscribers of the channel are notified
-- ARGV[3]  the locker that releases, as in the other kinds
-- Returns what release.lua of the other kinds returns
local lock, channel = KEYS[1], KEYS[2]
local field, list, unlisted = ARGV[1], ARGV[2], nil

if redis.call('HEXISTS', lock, field) == 0 then
  return -1
end
redis.call('DEL', lock)
-- wake.lua
local told = redis.pcall('PUBLISH', channel, '0')
told = type(told) == 'number' and told or 0
return unlisted and {told, unlisted} or told
