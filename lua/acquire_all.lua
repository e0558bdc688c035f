-- Takes several locks if all of them are free, or none of them. Sent at most once per generation, as acquire is.
-- KEYS[2*i-1]  a lock
-- KEYS[2*i]    its last fence
-- ARGV[1]      lease, in milliseconds
-- ARGV[i+1]    field of the lock: uuid:task-id:generation
-- ARGV[#ARGV]  floor of the fences, in microseconds of the client's clock
-- Returns {1, fence, ...}  granted: a fence a lock
--         {0, ttl}         one is held by another: milliseconds until its lease runs out, -1 if it has none
local lease_ms, floor_us = ARGV[1], tonumber(ARGV[#ARGV])
local locks, answer = #KEYS / 2, {1}

for i = 1, locks do
  local lock, field = KEYS[2 * i - 1], ARGV[i + 1]
  local ttl = redis.call('PTTL', lock)
  if ttl ~= -2 and redis.call('HEXISTS', lock, field) == 0 then
    return {0, ttl}
  end
end

-- The client's clock counts only within the last minute of this server's own: one bad clock cannot spoil the sequence.
local now = redis.call('TIME')
local now_us = now[1] * 1000000 + now[2]
local fence = math.max(math.min(floor_us, now_us), now_us - 60000000)

-- The first write is one that a server without memory refuses; after a first write it lets a script go on.
for i = 1, locks do
  local last_fence = KEYS[2 * i]
  local text = string.format('%.0f', fence)
  local last = tonumber(redis.call('SET', last_fence, text, 'PX', 120000, 'GET') or 0)
  if last and last >= fence then
    text = string.format('%.0f', last + 1)
    redis.call('SET', last_fence, text, 'PX', 120000)
  end
  answer[i + 1] = text
end
for i = 1, locks do
  local lock, field = KEYS[2 * i - 1], ARGV[i + 1]
  redis.call('HSETNX', lock, field, 1)
  local leased = redis.pcall('PEXPIRE', lock, lease_ms)
  if leased ~= 1 then
    -- A user that may not call PEXPIRE, perhaps not DEL either, but SET: no lock must stand without a lease.
    for taken = 1, i do
      if redis.pcall('DEL', KEYS[2 * taken - 1]) ~= 1 then
        redis.call('SET', KEYS[2 * taken - 1], '', 'PX', 1)
      end
    end
    -- Redis before 7.2 does not say which command it refused.
    if type(leased) == 'table' then
      leased['err'] = leased['err'] .. ", refused: 'pexpire'"
    end
    return leased
  end
end
return answer
