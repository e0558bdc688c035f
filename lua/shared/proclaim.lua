-- Writes the value of a leader while it leads, and notifies observers of a new one. A late copy
-- writes nothing once the leader has lost the lock or has proclaimed something later.
-- KEYS[1]  the lock
-- KEYS[2]  the leader's value
-- KEYS[3]  the channel of the values of its leaders
-- ARGV[1]  field: uuid:task-id:generation
-- ARGV[2]  term: the fence of the lock
-- ARGV[3]  number: 1 for the first value of a term, and so on
-- ARGV[4]  value
-- ARGV[5]  how long the value stays, in milliseconds
-- Returns 1  it is there, or a later one of the same leader
--         0  the lock is not held under this field
local lock, leader, channel = KEYS[1], KEYS[2], KEYS[3]
local field, term, number, value, lifetime_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if redis.call('HEXISTS', lock, field) == 0 then
  return 0
end
local stands = redis.call('HMGET', leader, 'field', 'number')
local last = stands[1] == field and tonumber(stands[2]) or 0
if last <= tonumber(number) then
  redis.call('HSET', leader, 'field', field, 'term', term, 'number', number, 'value', value)
end
redis.call('PEXPIRE', leader, lifetime_ms)
if last < tonumber(number) then
  -- The message is a hint: observers poll in any case.
  redis.pcall('PUBLISH', channel, '1')
end
return 1
