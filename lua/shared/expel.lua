-- Releases a read-write lock from the holders with these fields, and publishes its unlock message.
-- Others that have it keep it.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV     the fields
-- Returns how many of them had it
local lock, channel = KEYS[1], KEYS[2]

local removed = 0
local prefix = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
for _, field in ipairs(ARGV) do
  local count = field ~= 'mode' and tonumber(redis.call('HGET', lock, field) or nil)
  if count then
    for n = math.min(count, 1000), 1, -1 do
      -- While a slot moves, it may be on another server. It ends with its lease.
      redis.pcall('DEL', prefix .. ':' .. field .. ':rwlock_timeout:' .. n)
    end
    removed = removed + redis.call('HDEL', lock, field)
  end
end
if removed == 0 then
  return 0
end
local readers, writers = 0, 0
local fields = redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  if string.find(fields[i], ':write$') then
    writers = writers + 1
  elseif fields[i] ~= 'mode' then
    readers = readers + 1
  end
end
if readers + writers == 0 then
  redis.call('DEL', lock)
elseif writers == 0 then
  redis.call('HSET', lock, 'mode', 'read')
end
redis.pcall('PUBLISH', channel, '1')
return removed
