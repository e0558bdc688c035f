-- Stands before a script whose answer counts as a vote: whether the server remembers what it was vetted for.
-- KEYS[#KEYS]    its memory
-- ARGV[#ARGV-1]  the digest of what it remembered then; the number of the send comes last
local remembers = redis.call('HEXISTS', KEYS[#KEYS], ARGV[#ARGV - 1]) == 1
