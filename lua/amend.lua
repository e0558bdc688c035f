-- Changes what a server remembers of itself, if it is still what it was when that was decided.
-- KEYS[1]    its memory
-- KEYS[i+1]  a mark that is raised, where there are any
-- ARGV[1]    the memory that it had
-- ARGV[2]    the memory that it is to have
-- ARGV[3]    1: it is listed from now on
-- ARGV[4]    the longest lease that it has waited for, in milliseconds; -1: it does not vote by this
-- ARGV[5]    what the marks are raised to: the highest of these numbers that is at most 30 days ahead of the clock
-- Returns {memory, lease, age}  what it remembers now, whether it was changed or not
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
