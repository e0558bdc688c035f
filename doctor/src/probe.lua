-- Finds out which commands a user may send, without writing anything. It runs as a script that may
-- not write (`#!lua flags=no-writes`, which is put before this), and a server checks the user's
-- rights before it refuses a write. It declares no key, since it writes nothing. ARGV  for each
-- command `try` or `ask`, the number of its words, and its words Returns an array: for each command
-- its error, in the server's words, or an empty string
local errors, at = {}, 1
while at <= #ARGV do
  local first, last = at + 2, at + 1 + ARGV[at + 1]
  local refusal = ''
  if ARGV[at] == 'try' then
    local answer = redis.pcall(unpack(ARGV, first, last))
    refusal = type(answer) == 'table' and answer['err'] or ''
  elseif not redis.acl_check_cmd(unpack(ARGV, first, last)) then
    -- No script may subscribe, whoever its user is; but the server tells. Without a channel it
    -- reports the command.
    local what = redis.acl_check_cmd(ARGV[first]) and 'access a channel' or "run the '" .. ARGV[first] .. "' command"
    refusal = 'NOPERM no permissions to ' .. what
  end
  errors[#errors + 1] = refusal
  at = last + 1
end
return errors
