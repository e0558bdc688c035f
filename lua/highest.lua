-- Tells the highest mark of a server.
-- KEYS[i]  a mark
-- Returns it as a text
local highest, text = 0, '0'
for _, mark in ipairs(redis.call('MGET', unpack(KEYS))) do
  if mark and tonumber(mark) > highest then
    highest, text = tonumber(mark), mark
  end
end
return text
