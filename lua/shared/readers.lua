-- Lists those who have a read-write lock.
-- KEYS[1]  the lock
-- Returns {}    free
--         {mode, ttl, field, count, left, ..}
--               its mode, the milliseconds that it has left, and three entries for each holder, at most 1,000
--               of them: its field, how many times it has entered, and its milliseconds: 0 for a reader that died
--         type  the key is no such lock: its type, as TYPE returns it
local lock = KEYS[1]

local kind = redis.call('TYPE', lock)['ok']
if kind == 'none' then
  return {}
end
local mode = kind == 'hash' and redis.call('HGET', lock, 'mode')
if mode ~= 'read' and mode ~= 'write' then
  return kind
end
local ttl = redis.call('PTTL', lock)
local fields, answer = redis.call('HGETALL', lock), {mode, ttl}
local prefix = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
for i = 1, math.min(#fields, 2002), 2 do
  local field, count = fields[i], tonumber(fields[i + 1]) or 0
  if field ~= 'mode' then
    local left = string.find(field, ':write$') and ttl or 0
    for n = math.min(count, 1000), 1, -1 do
      local timeout = redis.pcall('PTTL', prefix .. ':' .. field .. ':rwlock_timeout:' .. n)
      left = type(timeout) == 'number' and math.max(left, timeout) or left
    end
    answer[#answer + 1] = field
    answer[#answer + 1] = count
    answer[#answer + 1] = left
  end
end
return answer
