-- Gives the records the lifetime of the counter, which a client of Redisson may have set. So what
-- was taken of a counter that has run out is not taken of the next one, and what is taken of one
-- that stays is not forgotten. Defines `life`: its milliseconds, below zero without an end.
local life = redis.call('PTTL', counter)
if life > 0 then
  redis.call('PEXPIRE', records, life)
elseif life == -1 and redis.call('PTTL', records) >= 0 then
  redis.call('PERSIST', records)
end
