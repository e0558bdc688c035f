-- Reads the counter of free permits. Defines `free`: a number, or nil if there is no counter.
local free = redis.call('GET', counter)
-- One with more digits than a number has here, or with zeros in front, would be read as another.
if free and not (string.find(free, '^-?%d+$') and string.format('%.0f', free) == free) then
  return redis.error_reply('ERR the counter of permits is not an integer: ' .. string.sub(free, 1, 40))
end
free = free and tonumber(free) or nil
