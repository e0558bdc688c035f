-- What the scripts of a fair lock share, of this `queue` and its `timeouts`, `channel` and `wakes`.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Tickets of Redisson have two parts, and those of this crate more.
local function is_of_jvm(ticket)
  return not string.find(ticket, ':.*:')
end

-- Removes tickets from the front whose time is over, as Redisson does, by the server's clock. One
-- without a time stays: its time may be lost, and its caller alive. Returns how many.
local function prune(all)
  for i, ticket in ipairs(all) do
    local stands = redis.call('ZSCORE', timeouts, ticket)
    if not stands or stands + 0 > now_ms() then
      return i - 1
    end
    redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, ticket)
  end
  return #all
end

-- Messages are hints: a user that may not publish has done the rest all the same.
local function tell(channel)
  local told = redis.pcall('PUBLISH', channel, '0')
  return type(told) == 'number' and told or 0
end

-- Tells the one that is next that the lock is free: a JVM on the channel of its ticket, a locker by
-- its name, and all that listen to the lock if nobody hears that.
local function call(ticket)
  if not ticket then
    return 0
  end
  if is_of_jvm(ticket) then
    return tell(channel .. ':' .. ticket)
  end
  local heard, told = wakes ~= '', 0
  if heard then
    heard, told = pcall(redis.call, 'PUBLISH', wakes .. string.match(ticket, '^[^:]*'), 'fair ' .. lock)
  end
  return heard and told > 0 and told or tell(channel)
end
