-- Takes permits for callers in the order of their line, up to the first for whom there are not
-- enough. Sent once for a field; a second copy takes nothing more for a caller that has its
-- permits.
-- KEYS[1]  the counter of free permits. Below zero if more are taken than the capacity
-- KEYS[2]  the records of taken permits
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  the lease of the locker, in milliseconds. A tenth of it is the slack for clocks of JVMs:
--          a record ends so much after the lease, and is removed so much after its end. Their error
--          has nothing to do with how long a caller wants its permits, or those of others, to last
-- ARGV[3]  the capacity, if there is no counter yet; empty: none is known
-- ARGV[4]  the channel of messages about free permits
-- ARGV[5]  how many callers
-- ARGV[4+2*i], ARGV[5+2*i]
--          how many permits a caller wants, and its field: uuid:task-id:generation
-- Returns {callers, due, total}
--           callers  this number of callers have their permits; the others have none
--           due      milliseconds until the next permit that is taken runs out, if its holder does
--                    not renew it; -1 if none is taken
--           total    how many permits there are, free or taken, below zero if a JVM has taken more off
--                    than there were; false if no capacity was ever set
local counter, records = KEYS[1], KEYS[2]
local lease_ms, slack_ms = ARGV[1] + 0, math.floor(ARGV[2] / 10)
local capacity, channel, callers = ARGV[3], ARGV[4], ARGV[5] + 0
-- forgotten.lua
-- pruned.lua
-- members.lua

-- All that is read is read before anything is taken: no client would undo that for a user that may
-- not read.
local taken = redis.call('ZCARD', records)
local due, first = -1, redis.call('ZRANGE', records, '0', '0', 'WITHSCORES')
local ends = now + lease_ms + slack_ms
if not free and capacity ~= '' then
  -- What is taken stays taken, though the counter was lost.
  free = capacity - taken
  redis.call('SET', counter, free)
  -- Others may wait for that.
  raised = true
end
-- Before anything is taken, too: such permits would outlive the counter.
-- lifetime.lua
local granted, fits = 0, free ~= nil
for i = 1, callers do
  local n = ARGV[4 + 2 * i] + 0
  local names = members(n, ARGV[5 + 2 * i])
  local found = there(names, redis.call('ZMSCORE', records, unpack(names)))
  local missing = n - #found / 2
  -- If the counter ends in this millisecond, no record can be made to end with it.
  fits = fits and (missing == 0 or life ~= 0 and free >= missing)
  if fits then
    if missing > 0 then
      redis.call('INCRBY', counter, -missing)
    end
    local scored = {}
    for at, name in ipairs(names) do
      scored[2 * at - 1], scored[2 * at] = ends, name
    end
    local added = redis.pcall('ZADD', records, unpack(scored))
    if type(added) == 'table' then
      if missing > 0 then
        redis.call('INCRBY', counter, missing)
      end
      if granted == 0 then
        if raised and free > 0 then
          redis.pcall('PUBLISH', channel, free)
        end
        return added
      end
      fits = false
    else
      free, taken, granted = free - missing, taken + missing, granted + 1
    end
  elseif #found > 0 and missing > 0 then
    -- A part of a copy that was granted and pruned since: it is a claim no more.
    local back = redis.call('ZREM', records, unpack(names))
    taken = taken - back
    if free then
      redis.call('INCRBY', counter, back)
      free, raised = free + back, true
    end
  end
end
if life > 0 and granted > 0 then
  -- The records may be new.
  redis.call('PEXPIRE', records, life)
end
-- Whether granted or not: what is too few for one may be enough for another.
if raised and free > 0 then
  redis.pcall('PUBLISH', channel, free)
end
if taken > 0 then
  due = math.max(math.min(first[2] or ends, granted > 0 and ends or math.huge) + slack_ms - now, 0)
end
return {granted, due, free ~= nil and free + taken}
