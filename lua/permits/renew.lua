-- Raises the leases of many claims. Never creates a member: a permit that ran out and was removed
-- has been given back. A failing key does not fail the others.
-- KEYS[i]    the records of taken permits
-- ARGV[1]    the lease of the locker, in milliseconds. No other lease is renewed
-- ARGV[2*i]  how many permits the claim has, and behind it its field: uuid:task-id:generation
-- Returns an array: how many were renewed, and two entries for each one that was not:
--         i     its index in KEYS
--         0     gone: some of its permits are not taken under this field
--         text  or, instead of 0, an error in the server's words
local lease_ms, reply, renewed = ARGV[1] + 0, {0}, 0
local time = redis.call('TIME')
local ends = time[1] * 1000 + math.floor(time[2] / 1000) + lease_ms + math.floor(lease_ms / 10)
-- Looked up once: it is called twice per claim.
local pcall = redis.pcall
for i, records in ipairs(KEYS) do
  local n, field = ARGV[2 * i] + 0, ARGV[2 * i + 1]
  local names, scored = {field}, {ends, field}
  for k = 2, n do
    names[k] = field .. ':' .. k
    scored[2 * k - 1], scored[2 * k] = ends, names[k]
  end
  local answer = pcall('ZMSCORE', records, unpack(names))
  if not answer['err'] then
    local all = true
    for k = 1, n do
      all = all and answer[k]
    end
    -- ZADD does not count members that have this score already, so they are looked at before.
    answer = all and pcall('ZADD', records, 'XX', unpack(scored)) or 0
    if type(answer) == 'number' and all then
      answer = 1
    end
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
