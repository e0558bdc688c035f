-- Releases a lock from the named holders and publishes its unlock message. If another client holds
-- it by now, it stays.
-- KEYS[1]  the lock
-- KEYS[2]  the channel of its unlock messages
-- ARGV     the holders, as holders.lua names them
-- Returns 1  they held it
--         0  it was free, or somebody else holds it
local lock, channel = KEYS[1], KEYS[2]

local named = {}
for _, name in ipairs(ARGV) do
  named[name] = true
end
local kind = redis.call('TYPE', lock)['ok']
local holders = {}
if kind == 'string' then
  holders = {redis.call('GET', lock)}
elseif kind == 'hash' then
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    holders[#holders + 1] = fields[i]
  end
end
local found = 0
for _, holder in ipairs(holders) do
  if named[redis.sha1hex(holder)] then
    found = found + 1
  -- Redisson's read-write lock keeps its mode in the same hash as its holders.
  elseif kind ~= 'hash' or holder ~= 'mode' then
    return 0
  end
end
if found == 0 then
  return 0
end
redis.call('DEL', lock)
redis.pcall('PUBLISH', channel, '0')
return 1
