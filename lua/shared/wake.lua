-- Wakes the next of the lockers that wait for this `lock`, which is free now, and returns from the
-- script. If there is no list, or if the list cannot be used (then `unlisted` is the error), the
-- lines behind this notify all subscribers. A wake-up is a hint and not a grant. So is the list,
-- ARGV[2]: lockers in the order in which they arrived. It is not a declared key, so that a user
-- without rights to it can still release.
local wake = 'lockhound_wake:'
local listed = list ~= '' and redis.pcall('ZCARD', list) or 0
if listed ~= 0 then
  local ok, woken = pcall(function()
    if type(listed) == 'table' then
      error(listed)
    end
    local me, enlists, listens, offers, lifetime = string.match(ARGV[3], '^(%S+) (%d) (%d) (%d+) (%d+)$')
    if me and enlists == '1' then
      redis.call('ZADD', list, (tonumber(redis.call('ZRANGE', list, -1, -1, 'WITHSCORES')[2]) or 0) + 1, me)
      if redis.call('PTTL', list) * 2 < lifetime + 0 then
        redis.call('PEXPIRE', list, lifetime)
      end
    elseif me then
      redis.call('ZREM', list, me)
    end
    -- A locker that is not subscribed is gone. After 100 of these, all subscribers of the channel
    -- are notified.
    for tries = 1, 100 do
      local first, next = unpack(redis.call('ZRANGE', list, 0, 1))
      if not first then
        return nil
      end
      if first == me then
        redis.call('ZREM', list, me)
        return nil
      end
      -- PUBLISH would also count clients that are subscribed to all channels.
      local ears = redis.call('PUBSUB', 'NUMSUB', channel, wake .. first, wake .. (next or first))
      -- Clients that are not in the list are subscribed too, Redisson's for example. They hear only
      -- the message of the channel.
      local waiting = redis.call('ZCARD', list)
      local others = math.max(ears[2] - (listens or 0) - waiting, 0)
      local turn = me and others > 0 and offers + 0 or 0
      if ears[4] > 0 then
        redis.call('PUBLISH', wake .. first, (turn > 0 and 'turn ' .. turn or 'go') .. ' ' .. lock)
        local watches = ears[6] > 0
        while turn == 0 and next and next ~= me and tries <= 100 and not watches do
          redis.call('ZREM', list, next)
          next, tries = redis.call('ZRANGE', list, 1, 1)[1], tries + 1
          watches = next and redis.call('PUBSUB', 'NUMSUB', wake .. next)[2] > 0
        end
        if turn == 0 and watches and next and next ~= me then
          redis.call('PUBLISH', wake .. next, 'watch ' .. lock)
        end
        -- If no client watches the first locker, or no client keeps track of the turns of others,
        -- others must not depend on it.
        if turn > 0 or (others > 0 and not (next and me)) then
          redis.call('PUBLISH', channel, '0')
        end
        return {me and redis.call('ZRANK', list, me) or -1, turn, others, waiting}
      end
      redis.call('ZREM', list, first)
    end
  end)
  if ok and woken then
    return woken
  end
  unlisted = not ok and (type(woken) == 'table' and woken['err'] or tostring(woken)) or nil
end
