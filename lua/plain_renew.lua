-- Starts the leases of many locks of the plain format anew. Never creates a lock; one odd key does not fail the others.
-- KEYS[i]    a lock
-- ARGV[1]    their lease, in milliseconds
-- ARGV[i+1]  its value: uuid:task-id:generation
-- Returns an array: how many were renewed, and two entries for each that was not:
--         i     which of the KEYS
--         0     gone: the lock is not held under this value
--         text  in its stead, an error, word for word
local lease_ms, reply, renewed = ARGV[1], {0}, 0
-- Looked up once: this is called twice a lock.
local pcall = redis.pcall
for i, lock in ipairs(KEYS) do
  local answer = pcall('GET', lock)
  if type(answer) ~= 'table' then
    answer = answer == ARGV[i + 1] and pcall('PEXPIRE', lock, lease_ms) or 0
  end
  if answer == 1 then
    renewed = renewed + 1
  else
    if type(answer) == 'table' then
      -- A replica writes nothing at all: that is the answer to the whole script.
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
