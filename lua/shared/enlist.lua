-- Takes a lock if it is free, as `acquire` does. Otherwise puts the locker that asks into the list
-- of waiting lockers.
-- KEYS[1]  the lock, followed by the other KEYS of `acquire`
-- ARGV     the ARGV of `acquire`, followed by:
-- ARGV[4]  the list
-- ARGV[5]  the locker
-- ARGV[6]  1: the locker has waited long enough for the lockers before it in the list
-- ARGV[7]  how long the list is kept at least, in milliseconds
-- Returns {1, fence}       granted
--         {0, ttl, place}  held by another: milliseconds until its lease runs out, -1 if it has none; and the number of
--                          lockers before this one
--         {0, ttl, error}  held by another, and the locker cannot be put into the list
local lock = KEYS[1]
local list, locker, looked, lifetime_ms = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local answer = acquire(KEYS, ARGV)
if answer[1] == 1 then
  pcall(function()
    -- At most the locker that was woken and the one that watches it. Nothing is known about those
    -- behind them.
    local before = looked == '1' and redis.call('ZRANK', list, locker) or 0
    redis.call('ZREM', list, locker)
    for _, other in ipairs(before > 0 and redis.call('ZRANGE', list, 0, math.min(before, 2) - 1) or {}) do
      -- A locker that is there after all asks for the lock, and is put into the list again.
      redis.call('ZREM', list, other)
      redis.call('PUBLISH', 'lockhound_wake:' .. other, 'go ' .. lock)
    end
  end)
elseif answer[1] == 0 then
  local ok, place = pcall(function()
    if not redis.call('ZRANK', list, locker) then
      -- A count, and not a time, which would put it first after a clock was set back.
      redis.call('ZADD', list, (tonumber(redis.call('ZRANGE', list, -1, -1, 'WITHSCORES')[2]) or 0) + 1, locker)
    end
    if redis.call('PTTL', list) < lifetime_ms + 0 then
      redis.call('PEXPIRE', list, lifetime_ms)
    end
    return redis.call('ZRANK', list, locker)
  end)
  if not ok then
    redis.pcall('ZREM', list, locker)
    place = type(place) == 'table' and place['err'] or tostring(place)
  end
  answer[3] = place
end
return answer
