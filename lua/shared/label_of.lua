-- Reads what a locker calls itself.
-- KEYS[1]  the label of the locker
-- Returns text  its first 512 bytes, any bytes
--         {}    it has none
local label = KEYS[1]

local text = redis.call('GET', label)
return text and string.sub(text, 1, 512) or {}
