-- Changes the memory of a server, if it still is the memory that the change was decided on.
-- KEYS[1]    the server's memory
-- KEYS[i+1]  the marks to raise, if any
-- ARGV[1]    the memory that the change was decided on
-- ARGV[2]    the new memory
-- ARGV[3]    1: the server is listed from now on
-- ARGV[4]    the longest lease that the server has waited for, in milliseconds; -1: this change does not let it vote
-- ARGV[5]    numbers: the marks are raised to the highest one that is at most 30 days ahead of this server's clock
-- Returns {memory, lease, age}  what the server remembers now, whether it was changed or not
local memory = KEYS[1]
local from, to, listed, waited_ms, told = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- remember.lua
local found = redis.call('HMGET', memory, 'vote', 'lease', 'age', 'server')
local vote, lease, age = found[1] or '', tonumber(found[2] or 0), tonumber(found[3] or 0)
if vote ~= from or (waited_ms >= 0 and lease > waited_ms) then
  return {vote, lease, age}
end
local mark, latest = '0', redis.call('TIME')[1] * 1000000 + 2592000000000
for number in string.gmatch(told, '%d+') do
  if tonumber(number) > tonumber(mark) and tonumber(number) <= latest then
    mark = number
  end
end
for i = 2, #KEYS do
  if tonumber(redis.call('GET', KEYS[i]) or 0) < tonumber(mark) then
    redis.call('SET', KEYS[i], mark)
  end
end
if listed == '1' then
  age = 0
end
remember(found[4] or '', to, lease, age)
return {to, lease, age}
