-- Lets a server vote that has waited, and has been told what it may have forgotten.
-- KEYS[1]    the server's memory
-- KEYS[i+1]  a mark, if the others told any
-- ARGV[1]    the id that it has; it does nothing if that is another one by now
-- ARGV[2]    the id that it gets
-- ARGV[3]    the lease that it has waited for, in milliseconds
-- ARGV[4]    the longest lease that the others told
-- ARGV[5]    their marks: its own are raised to the highest one that is at most 30 days ahead of
--            its clock
-- ARGV[6]    the ids of the servers that begin together with it
-- ARGV[7]    the number of servers
-- ARGV[8]    the number of servers that its memory named when this was decided
-- Returns 1  it votes
--         0  it has another id, somebody names another number of servers by now, or it waits on for a longer lease
local memory, from, to = KEYS[1], ARGV[1], ARGV[2]
local waited_ms, told_ms, told, with, seats = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]

local found = redis.call('HMGET', memory, 'server', 'id', 'lease', 'seats')
if found[2] ~= from or found[4] ~= ARGV[8] then
  return 0
end
local lease = math.max(tonumber(found[3] or 0), told_ms)
if lease > waited_ms then
  redis.call('HSET', memory, 'lease', lease)
  return 0
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
redis.call('HSET', memory, 'lease', lease)
redis.call('DEL', memory)
redis.call('HSET', memory, 'server', found[1] or '', 'id', to, 'seats', seats, 'lease', lease, 'begun', 0, 'with', with,
  to, '')
return 1
