-- Reports how many permits are free, and who has the others.
-- KEYS[1]  the counter of free permits
-- KEYS[2]  the records of taken permits
-- ARGV[1]  the lease of the locker, in milliseconds
-- ARGV[2]  how many permits are listed at most: those that last longest, since the others come back
--          sooner by themselves
-- Returns {free, taken, member, left, ..}
--           free    the counter, with the permits that ran out and were not removed yet; the text
--                   'unset' if there is none
--           taken   how many are taken
--           member  of the listed permits, by the end of their leases: the member, which may be any
--                   bytes, and for how many milliseconds its lease lasts, -1 if it has no end
local counter, records = KEYS[1], KEYS[2]
local slack_ms, most = math.floor(ARGV[1] / 10), ARGV[2] + 0

-- free.lua
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over = redis.call('ZCOUNT', records, '-inf', now - slack_ms)
local all = redis.call('ZCARD', records)
local reply = {free and free + over or 'unset', all - over}
local listed = redis.call('ZRANGE', records, math.max(over, all - most), '-1', 'WITHSCORES')
for i = 1, #listed, 2 do
  -- Redisson's permits without a lease end at the end of its calendar.
  local left = listed[i + 1] - now
  reply[#reply + 1] = listed[i]
  reply[#reply + 1] = left < 9e14 and math.max(left, 0) or -1
end
return reply
