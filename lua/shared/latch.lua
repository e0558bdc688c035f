-- Reads the count of a latch.
-- KEYS[1]  the count
-- Returns it, as text; false if the latch is open
local latch = KEYS[1]
-- pending.lua
return count
