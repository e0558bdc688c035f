-- Tries commands, and writes nothing: it runs as a script that may not write (`#!lua flags=no-writes`, which stands
-- before this), and a server looks at the rights of whoever asks before it refuses what writes. Since nothing is
-- written, no key is declared.
-- ARGV  for each command how many words it has, and its words
-- Returns an array: for each command its error, word for word, or an empty text
local errors, at = {}, 1
while at <= #ARGV do
  local last = at + ARGV[at]
  local answer = redis.pcall(unpack(ARGV, at + 1, last))
  errors[#errors + 1] = type(answer) == 'table' and answer['err'] or ''
  at = last + 1
end
return errors
