-- What the scripts of a fair lock share, of this `queue` and its `timeouts`, `channel` and `wakes`.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Tickets of Redisson have two parts, and those of this crate more, of which the first one is the
-- locker.
local function locker_of(ticket)
  return string.match(ticket, '^([^:]*):.*:')
end

-- Removes tickets from the front whose time is over, as Redisson does, by the server's clock. One
-- without a time stays: its time may be lost, and its caller alive. Returns how many.
local function prune(all)
  local now = now_ms()
  for i, ticket in ipairs(all) do
    local stands = redis.call('ZSCORE', timeouts, ticket)
    if not stands or stands + 0 > now then
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

-- Tells the one that is next that the lock is free: a locker by its name, or a JVM on the channel
-- of its ticket. A locker that does not listen to its name, and whoever wants the lock if no caller
-- is next, is told on the channel of the lock. Returns how many heard it.
local function call(ticket)
  local locker = ticket and locker_of(ticket)
  if locker and wakes ~= '' then
    -- PUBLISH would also count clients that are subscribed to all channels.
    local ears = redis.pcall('PUBSUB', 'NUMSUB', wakes .. locker)
    local told = (ears[2] or 0) > 0 and redis.pcall('PUBLISH', wakes .. locker, 'fair ' .. lock)
    if type(told) == 'number' then
      return told
    end
  end
  local told = ticket and tell(channel .. ':' .. ticket) or 0
  return ticket and not locker and told or told + tell(channel)
end
