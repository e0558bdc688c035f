-- Restarts the leases of many reads. Never creates a lock. A failing key does not fail the others.
-- KEYS     two for each read: the lock, and the timeout of the reader
-- ARGV[1]    their lease, in milliseconds
-- ARGV[i+1]  the field of each: uuid:task-id:generation
-- Returns an array: how many were renewed, and two entries for each one about which there is more to say:
--         i     which of them
--         0     gone: the lock is not held under this field
--         text  or, instead of 0, an error in the server's words
--         cut   or 'cut' and a number: renewed, and before that another client with a shorter lease had left the
--               lock only so many milliseconds
local lease_ms, reply, renewed = ARGV[1], {0}, 0
-- Looked up once: it is called several times per lock.
local pcall = redis.pcall
for i = 1, math.floor(#KEYS / 2) do
  local lock, timeout, cut = KEYS[2 * i - 1], KEYS[2 * i], nil
  local answer = pcall('HEXISTS', lock, ARGV[i + 1])
  if answer == 1 then
    local left, own = pcall('PTTL', lock), pcall('PTTL', timeout)
    -- As long as the field is there, no writer came, so a timeout that ran out may come back.
    answer = pcall('SET', timeout, '1', 'PX', lease_ms)
    if not answer['err'] then
      -- Clients of this crate only ever raise the lease. The two are not read in the same millisecond.
      cut = own - left > 50 and 'cut ' .. left
      answer = left < lease_ms + 0 and pcall('PEXPIRE', lock, lease_ms) or 1
    end
  end
  if answer == 1 then
    renewed = renewed + 1
    answer = cut
  elseif type(answer) == 'table' then
    -- A replica refuses every write: its error is the answer to the whole script.
    if string.find(answer['err'], 'READONLY', 1, true) then
      return answer
    end
    answer = answer['err']
  end
  if answer then
    reply[#reply + 1] = i
    reply[#reply + 1] = answer
  end
end
reply[1] = renewed
return reply
