-- Stands before a script whose answer counts as a vote: whether the server remembers what it was vetted for.
-- KEYS[#KEYS]  its memory
-- ARGV[#ARGV]  what it remembered then
local remembers = redis.call('HGET', table.remove(KEYS), 'vote') == table.remove(ARGV)
