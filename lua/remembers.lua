-- Stands before a script whose answer counts as a vote: whether the server remembers what it was vetted for.
-- KEYS[#KEYS]    its memory
-- ARGV[#ARGV-1]  what it remembered then
-- The number of the send, which comes last, has been read by now.
table.remove(ARGV)
local remembers = redis.call('HGET', table.remove(KEYS), 'vote') == table.remove(ARGV)
