-- Wakes the next of the lockers that wait for this `lock`, which is free now, and ends the script. Where there is no
-- list, or where the user may not use it (then `unlisted` says so), what stands behind this tells all.
-- A wake-up is a hint and no grant. So is the list, in ARGV[2]: lockers, in the order in which they came; no key of it
-- is declared, so that a user who has no right to it can release all the same.
local wake = 'lockhound_wake:'
local listed = list ~= '' and redis.pcall('ZCARD', list) or 0
if listed ~= 0 then
  local ok, woken = pcall(function()
    if type(listed) == 'table' then
      error(listed)
    end
    local me, enlists, listens, offers, lifetime = string.match(ARGV[3], '^(%S+) (%d) (%d) (%d) (%d+)$')
    if enlists == '1' then
      -- Behind all others. The score is no time: a clock that is set back would put it before them.
      redis.call('ZADD', list, redis.call('ZRANGE', list, -1, -1, 'WITHSCORES')[2] + 1, me)
      if redis.call('PTTL', list) * 2 < lifetime + 0 then
        redis.call('PEXPIRE', list, lifetime)
      end
    elseif me then
      redis.call('ZREM', list, me)
    end
    -- Whoever is not subscribed is not there any more. After so many of them all are told.
    for tries = 1, 100 do
      local first, next = unpack(redis.call('ZRANGE', list, 0, 1))
      if not first then
        return nil
      end
      if first == me then
        redis.call('ZREM', list, me)
        return nil
      end
      -- PUBLISH would count those too who listen to all channels.
      local ears = redis.call('PUBSUB', 'NUMSUB', channel, wake .. first, wake .. (next or first))
      -- Others than the lockers of the list listen too: Redisson's clients, say. They hear what all hear, and nothing
      -- else.
      local others = ears[2] - (listens or 0) > redis.call('ZCARD', list)
      local turn = others and offers == '1'
      if ears[4] > 0 then
        redis.call('PUBLISH', wake .. first, (turn and 'turn ' or 'go ') .. lock)
        local watches = ears[6] > 0
        while not turn and next and next ~= me and tries <= 100 and not watches do
          redis.call('ZREM', list, next)
          next, tries = redis.call('ZRANGE', list, 1, 1)[1], tries + 1
          watches = next and redis.call('PUBSUB', 'NUMSUB', wake .. next)[2] > 0
        end
        if not turn and watches and next and next ~= me then
          redis.call('PUBLISH', wake .. next, 'watch ' .. lock)
        end
        -- Where nobody watches the first, or nobody knows when others had a turn, the others must not depend on it.
        if turn or (others and not (next and me)) then
          redis.call('PUBLISH', channel, '0')
        end
        return {me and redis.call('ZRANK', list, me) or -1, turn and 1 or others and 2 or 0}
      end
      redis.call('ZREM', list, first)
    end
  end)
  if ok and woken then
    return woken
  end
  unlisted = not ok and (type(woken) == 'table' and woken['err'] or tostring(woken)) or nil
end
