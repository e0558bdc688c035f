-- Tells what a server that is to be opened has to know from this one.
-- KEYS[i]  a mark; the last of the KEYS is the memory
-- ARGV[1]  the id of the server that is to be opened
-- Returns {votes, lease, mark}  1: this server votes, and was not opened together with that one;
-- the longest lease that
--                               was announced to it; its highest mark that is at most 30 days ahead of its clock

-- forgotten.lua
local found = redis.call('HMGET', KEYS[#KEYS], 'begun', 'lease', 'with')
local votes = found[1] == '0' and not string.find(found[3] or '', ARGV[1], 1, true)
local highest, text, latest = 0, '0', redis.call('TIME')[1] * 1000000 + 2592000000000
local marks = redis.call('MGET', unpack(KEYS, 1, #KEYS - 1))
for _, mark in ipairs(marks) do
  if mark and tonumber(mark) > highest and tonumber(mark) <= latest then
    highest, text = tonumber(mark), mark
  end
end
return {votes and 1 or 0, tonumber(found[2] or 0), text}
