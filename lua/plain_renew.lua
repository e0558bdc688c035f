-- Starts the leases of many locks of the plain format anew. Never creates a lock; one odd key does not fail the others.
-- KEYS[i]      a lock
-- ARGV[2*i-1]  its lease, in milliseconds
-- ARGV[2*i]    its value: uuid:task-id:generation
-- Returns an array, an entry a lock:
--         1     renewed
--         0     gone: the lock is not held under this value
--         text  an error, word for word
local answers = {}
for i, lock in ipairs(KEYS) do
  local lease_ms, value = ARGV[2 * i - 1], ARGV[2 * i]
  local answer = redis.pcall('GET', lock)
  if type(answer) ~= 'table' then
    answer = answer == value and redis.pcall('PEXPIRE', lock, lease_ms) or 0
  end
  if type(answer) == 'table' then
    -- A replica writes nothing at all: that is the answer to the whole script.
    if string.find(answer['err'], 'READONLY', 1, true) then
      return answer
    end
    answer = answer['err']
  end
  answers[i] = answer
end
return answers
