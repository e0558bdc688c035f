-- Takes a read-write lock for a reader if no writer holds it and the reader does not have to let a
-- waiting writer pass. Sent at most once per generation; a late or second copy only raises leases.
-- KEYS[1]  the lock
-- KEYS[2]  its mark: the last fence of all locks that share the mark; it never expires. Or
--          Redisson's token counter
-- KEYS[3]  the reader's timeout key: Redisson's readers delete a lock whose readers have none
-- ARGV[1]  lease, in milliseconds
-- ARGV[2]  field: uuid:task-id:generation
-- ARGV[3]  the client's clock, in microseconds. Negative: truncated to 0.1 s, and this is the only
--          server. -1: KEYS[2] is a token counter, and no clock is used
-- ARGV[4]  the field of the owner's own write hold, inside which it reads; empty: of none
-- ARGV[5]  the writers' hint: it exists while a writer waits. Empty: this reader lets none pass
-- ARGV[6]  the readers' hint: after a reader was refused, how long readers need to come, in
--          milliseconds; 'turn' while they go first
-- ARGV[7]  for how long a refused reader sets its hint, in milliseconds; 0 or empty: it does not
-- ARGV[8]  the locker, whose own writers are behind this reader in its line
-- ARGV[9]  how long this reader needs to come, in milliseconds
-- Returns {1, fence}  granted
--         {0, ttl}    held by a writer, or a writer goes first: milliseconds until that lease, or the
--                     writers' hint, runs out, -1 if the lock has no lease
local lock, mark, timeout = KEYS[1], KEYS[2], KEYS[3]
local lease_ms, field, asked, under = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local writers_hint, readers_hint, hint_ms, locker = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local comes_ms = ARGV[9]
-- forgotten.lua

local ttl, copy, wait_ms = redis.call('PTTL', lock), false, nil
local free, inside = ttl == -2, false
if not free then
  local found = redis.call('HMGET', lock, field, 'mode', under)
  copy = found[1]
  -- The server compares it: this may be a late copy, and the write may be another's by now.
  inside = under ~= '' and found[3]
  -- Another lock of Redisson has no mode. Redisson's readers enter it all the same.
  if not copy and found[2] ~= 'read' and not (found[2] == 'write' and inside) then
    wait_ms = ttl
  end
end
-- The write is gone: others may have written since, also if the lock is free now.
if under ~= '' and not copy and not inside then
  wait_ms = math.max(ttl, 0)
end
-- Hints are not declared: a user without rights to them can still lock.
if not copy and not inside and not wait_ms and writers_hint ~= '' then
  local hint_left = redis.pcall('PTTL', writers_hint)
  if type(hint_left) == 'number' and hint_left > 0 and redis.pcall('GET', writers_hint) ~= locker
    and redis.pcall('GET', readers_hint) ~= 'turn' then
    wait_ms = hint_left
  end
end
if wait_ms then
  if (tonumber(hint_ms) or 0) > 0 then
    local found = redis.pcall('GET', readers_hint)
    if found ~= 'turn' then
      redis.pcall('SET', readers_hint, math.max(tonumber(found) or 0, comes_ms), 'PX', hint_ms)
    end
  end
  return {0, wait_ms}
end

-- fence.lua
-- A field without this key would not count as a reader, so the key comes first.
if not copy or redis.call('PTTL', timeout) < lease_ms + 0 then
  redis.call('SET', timeout, '1', 'PX', lease_ms)
end
if free then
  redis.call('HSET', lock, 'mode', 'read', field, '1')
  -- leased.lua
  return {1, fence}
end
-- Never lowered: other readers may have longer leases.
if ttl < lease_ms + 0 then
  redis.call('PEXPIRE', lock, lease_ms)
end
redis.call('HSET', lock, field, '1')
return {1, fence}
