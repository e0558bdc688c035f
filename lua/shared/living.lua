-- Sets `living` to whether a reader of this `lock` lives: one of its timeouts is there. Redisson has
-- a timeout for each of a reader's entries. With very many holders, one of them counts as alive.
local living = redis.call('HLEN', lock) > 65
if not living then
  local fields = redis.call('HGETALL', lock)
  local prefix = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
  for i = 1, #fields, 2 do
    for n = math.min(tonumber(fields[i + 1]) or 0, 1000), 1, -1 do
      -- While a slot moves, a timeout may be on another server: it counts as there.
      if not living and redis.pcall('PTTL', prefix .. ':' .. fields[i] .. ':rwlock_timeout:' .. n) ~= -2 then
        living = true
      end
    end
  end
end
