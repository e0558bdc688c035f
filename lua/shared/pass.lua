-- Takes a locker off the list of those that wait for a lock: none of its callers waits any more. If
-- the lock is free, wakes the next locker.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV[1]  the locker
-- ARGV[2]  the list
-- ARGV[3]  empty
-- Returns n              n clients received the message of the channel
--         {-1, 0}        the next locker of the list was woken
--         {told, error}  `told` clients received the message of the channel, since the list cannot be used
local lock, channel = KEYS[1], KEYS[2]
local list, unlisted = ARGV[2], nil

redis.pcall('ZREM', list, ARGV[1])
if redis.call('PTTL', lock) ~= -2 then
  return 0
end
-- wake.lua
local told = redis.pcall('PUBLISH', channel, '0')
told = type(told) == 'number' and told or 0
return unlisted and {told, unlisted} or told
