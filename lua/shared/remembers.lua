-- Stands before a script whose answer counts as a vote. Checks that the server still has the memory
-- it was vetted with.
-- KEYS[#KEYS]    the server's memory
-- ARGV[#ARGV-1]  the id that it had when it was vetted; the last argument is the number of the send
local remembers = redis.call('HEXISTS', KEYS[#KEYS], ARGV[#ARGV - 1]) == 1
