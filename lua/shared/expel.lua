-- Releases a read-write lock from the named holders, and from no other client, and notifies its
-- waiters.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV     the fields of the holders
-- Returns n  how many of them held it
local lock, channel = KEYS[1], KEYS[2]

local mode = redis.call('TYPE', lock)['ok'] == 'hash' and redis.call('HGET', lock, 'mode')
if mode ~= 'read' and mode ~= 'write' then
  return 0
end
-- timeouts.lua
local expelled = 0
for _, field in ipairs(ARGV) do
  local count = field ~= 'mode' and redis.call('HGET', lock, field)
  if count then
    redis.call('HDEL', lock, field)
    for n = 1, math.min(tonumber(count) or 0, 64) do
      redis.pcall('DEL', prefix .. ':' .. field .. ':rwlock_timeout:' .. n)
    end
    expelled = expelled + 1
  end
end
if expelled == 0 then
  return 0
end
local fields, writes = redis.call('HGETALL', lock), false
for i = 1, #fields, 2 do
  writes = writes or string.sub(fields[i], -6) == ':write'
end
-- One field is the mode.
if #fields <= 2 then
  redis.call('DEL', lock)
elseif mode == 'write' and not writes then
  redis.call('HSET', lock, 'mode', 'read')
end
redis.pcall('PUBLISH', channel, '1')
-- For JVMs, as after the release of a write.
redis.pcall('PUBLISH', channel, '00')
return expelled
