-- Returns the score of a locker in a list: a count, so that it is behind all others. A time would put it first after a
-- clock was set back. Over several servers it is the time since which the locker waits, which all of them are told:
-- their lists then have the same order. Clocks that are far off move it by no more than a second.
local function score(list, since)
  local last = tonumber(redis.call('ZRANGE', list, -1, -1, 'WITHSCORES')[2])
  if since == '' then
    return (last or 0) + 1
  end
  return last and math.min(math.max(since, last - 1000000), last + 1000000) or since
end
