-- Checks that a re-entered hold of the plain format is still held. Its count exists only in its own
-- process.
-- KEYS[1]  the lock
-- ARGV[1]  value: uuid:task-id:generation
-- Returns 1  held under this value: the answer of count.lua to a count that it wrote
--         0  gone: the lock is not held under this value
local lock = KEYS[1]
local value = ARGV[1]

local held = redis.pcall('GET', lock)
-- refused.lua
return held == value and 1 or 0
