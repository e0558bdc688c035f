-- Restarts the leases of many locks. Never creates a lock. A failing key does not fail the others.
-- KEYS[i]    a lock
-- ARGV[1]    their lease, in milliseconds
-- ARGV[i+1]  its field: uuid:task-id:generation
-- Returns an array: how many locks were renewed, and two entries for each one that was not:
--         i     its index in KEYS
--         0     gone: the lock is not held under this field
--         text  or, instead of 0, an error in the server's words
local lease_ms, reply, renewed = ARGV[1], {0}, 0
-- Looked up once: it is called twice per lock.
local pcall = redis.pcall
for i, lock in ipairs(KEYS) do
  local answer = pcall('HEXISTS', lock, ARGV[i + 1])
  if answer == 1 then
    answer = pcall('PEXPIRE', lock, lease_ms)
  end
  if answer == 1 then
    renewed = renewed + 1
  else
    if type(answer) == 'table' then
      -- A replica refuses every write: its error is the answer to the whole script.
      if string.find(answer['err'], 'READONLY', 1, true) then
        return answer
      end
      answer = answer['err']
    end
    reply[#reply + 1] = i
    reply[#reply + 1] = answer
  end
end
reply[1] = renewed
return reply
