-- Reads the count of a latch. Defines `count`, a text, or false if the latch is open: a count that
-- is not above zero is as good as none.
local count = redis.call('GET', latch)
if count and not string.find(count, '^-?%d+$') then
  return redis.error_reply('ERR the count of the latch is not an integer')
end
count = count and tonumber(count) > 0 and count
