-- Gives back the permits of a claim, and notifies those that wait. Also undoes an acquire that was
-- never answered. Only what was there is given back: never twice.
-- KEYS[1]  the counter of free permits
-- KEYS[2]  the records of taken permits
-- ARGV[1]  how many permits; 0: as many as there are, by force: ARGV[2] is in hex then, since a
--          member of Redisson may be any bytes
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  the channel of messages about free permits
-- Returns n   given back, and n clients are subscribed to the channel
--         -1  gone: not all of them were taken under this field, or by force none. What was is
--             given back
local counter, records = KEYS[1], KEYS[2]
local n, field, channel = ARGV[1] + 0, ARGV[2], ARGV[3]
-- members.lua

local is_forced = n == 0
if is_forced then
  -- No call takes more.
  n, field = 1000, string.gsub(field, '..', function(byte)
    return string.char(tonumber(byte, 16))
  end)
end
local names = members(n, field)
local held = redis.pcall('ZMSCORE', records, unpack(names))
if held['err'] then
  -- A key of another type has no permits of ours.
  return string.find(held['err'], 'WRONGTYPE', 1, true) and -1 or held
end
local found = there(names, held)
if #found == 0 then
  return -1
end
-- First: a full server refuses only the first write of a script if that needs memory.
local back = redis.call('ZREM', records, unpack(names))
local free = 0
-- A counter that was lost is not made here: its first handle takes account of what is taken.
if redis.call('EXISTS', counter) == 1 then
  free = redis.pcall('INCRBY', counter, back)
  if type(free) == 'table' then
    redis.call('ZADD', records, unpack(found))
    -- lifetime.lua
    return free
  end
end
-- The message is a hint: a user that may not publish has released the permits all the same.
local told = 0
if free > 0 then
  told = redis.pcall('PUBLISH', channel, free)
end
if back < n and not is_forced then
  return -1
end
return type(told) == 'number' and told or 0
