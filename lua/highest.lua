-- Finds the highest mark of a server that is at most 30 days ahead of its clock: a higher number cannot be a fence.
-- KEYS[i]  a mark
-- Returns the mark, as a string
local highest, text, latest = 0, '0', redis.call('TIME')[1] * 1000000 + 2592000000000
for _, mark in ipairs(redis.call('MGET', unpack(KEYS))) do
  if mark and tonumber(mark) > highest and tonumber(mark) <= latest then
    highest, text = tonumber(mark), mark
  end
end
return text
