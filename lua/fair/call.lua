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
-- of its ticket. If nobody hears that, and it is no JVM, all that listen to the lock are told.
local function call(ticket)
  local told, is_ours = 0, ticket and not is_of_jvm(ticket)
  if is_ours and wakes ~= '' then
    local locker = wakes .. string.match(ticket, '^[^:]*')
    local may, heard = pcall(redis.call, 'PUBLISH', locker, 'fair ' .. lock)
    told = may and heard or 0
  end
  if ticket and told == 0 then
    told = tell(channel .. ':' .. ticket)
  end
  return is_ours and told == 0 and tell(channel) or told
end
