-- Tries commands without writing anything. It runs as a script that may not write (`#!lua flags=no-writes`, which is
-- put before this), and a server checks the user's rights before it refuses a write. It declares no key, since it
-- writes nothing.
-- ARGV  for each command the number of its words, and its words
-- Returns an array: for each command its error, in the server's words, or an empty string
local errors, at = {}, 1
while at <= #ARGV do
  local last = at + ARGV[at]
  local answer = redis.pcall(unpack(ARGV, at + 1, last))
  errors[#errors + 1] = type(answer) == 'table' and answer['err'] or ''
  at = last + 1
end
return errors
