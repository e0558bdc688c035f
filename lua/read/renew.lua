-- Raises the leases of many readers: of the lock and of the reader's timeout key. Never lowers
-- one, since other readers of the lock may have longer leases, and never creates a lock. A failing
-- key does not fail the others.
-- KEYS[2*i-1]  a lock
-- KEYS[2*i]    the timeout key of its reader
-- ARGV[1]      their lease, in milliseconds
-- ARGV[i+1]    the reader's field: uuid:task-id:generation
-- Returns an array: how many were renewed, and two entries for each one with a remark:
--         i           its number, from 1
--         0           gone: the lock is not held under this field
--         'cut' ttl   or, instead of 0: renewed, but before that the lock had only this many milliseconds
--                     left, fewer than its reader. A Redisson with a shorter lease does that
--         text        or, instead of 0, an error in the server's words
local lease_ms, reply, renewed = ARGV[1] + 0, {0}, 0
-- Looked up once: it is called five times per reader.
local pcall = redis.pcall

-- Returns 1, 0 if there is no such key, or an error; and how long the key would have lived. It
-- always writes, since a replica must not seem to renew.
local function raise(key)
  local ttl = pcall('PTTL', key)
  if type(ttl) == 'table' then
    return ttl
  end
  return pcall('PEXPIRE', key, math.max(ttl, lease_ms)), ttl
end

for i = 1, math.floor(#KEYS / 2) do
  local lock, timeout = KEYS[2 * i - 1], KEYS[2 * i]
  local answer, ttl, own_ttl = pcall('HEXISTS', lock, ARGV[i + 1]), nil, nil
  if answer == 1 then
    answer, ttl = raise(lock)
  end
  if answer == 1 then
    answer, own_ttl = raise(timeout)
    -- It ran out or was evicted. While the field is there, no writer was.
    if answer == 0 then
      answer = pcall('SET', timeout, '1', 'PX', lease_ms)
      answer = answer['ok'] and 1 or answer
    end
  end
  if answer == 1 then
    renewed = renewed + 1
    -- The two are set in one step, which may cross a few milliseconds.
    if ttl >= 0 and own_ttl - ttl > 50 then
      answer = 'cut ' .. ttl
    end
  elseif type(answer) == 'table' then
    -- A replica refuses every write: its error is the answer to the whole script.
    if string.find(answer['err'], 'READONLY', 1, true) then
      return answer
    end
    answer = answer['err']
  end
  if answer ~= 1 then
    reply[#reply + 1] = i
    reply[#reply + 1] = answer
  end
end
reply[1] = renewed
return reply
