-- Runs `enlist` as a script of its own.
local function acquire(KEYS, ARGV)
-- acquire.lua
end
-- enlist.lua
