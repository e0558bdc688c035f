-- Reports who leads: the holder of the lock, with the value that was written under its field.
-- KEYS[1]  the lock
-- KEYS[2]  the leader's value
-- Returns {}                                 there is no leader
--         {ttl, owner}                       a leader without a value: milliseconds until its lease runs out, -1 if
--                                            it has none; the owner as it stands there, any bytes
--         {ttl, owner, term, number, value}  a leader with its term and value, as it wrote them
--         type                               the lock's key is no hash: its type, as TYPE returns it
local lock, leader = KEYS[1], KEYS[2]

local kind = redis.call('TYPE', lock)['ok']
if kind == 'none' then
  return {}
end
if kind ~= 'hash' then
  return kind
end
local owner = redis.call('HGETALL', lock)[1]
local report = {redis.call('PTTL', lock), owner}
local said = redis.call('HMGET', leader, 'field', 'term', 'number', 'value')
if said[1] == owner and said[4] then
  report[3], report[4], report[5] = tonumber(said[2]) or 0, tonumber(said[3]) or 0, said[4]
end
return report
