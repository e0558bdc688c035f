-- Stands before a script whose answer counts as a vote. Checks that the server still has the memory it was vetted with.
-- KEYS[#KEYS]    the server's memory
-- ARGV[#ARGV-1]  the digest of the memory that it was vetted with; the last argument is the number of the send
local remembers = redis.call('HEXISTS', KEYS[#KEYS], ARGV[#ARGV - 1]) == 1
