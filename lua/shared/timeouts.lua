-- Defines `left(field, count)`: for how many milliseconds the reader of this field still holds this
-- `lock`, or 0. For each hold of a reader, Redisson keeps a key that runs out with its lease. These
-- keys are not declared. If one cannot be read, since its slot moves or the user may not read it,
-- its reader counts as one that holds for ever; so does one with more than 64 holds.
-- Redisson adds no braces to a name that has some.
local prefix = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
local function left(field, count)
  local most = 0
  count = tonumber(count) or 0
  for n = 1, math.min(count, 64) do
    local ttl = redis.pcall('PTTL', prefix .. ':' .. field .. ':rwlock_timeout:' .. n)
    if type(ttl) ~= 'number' or ttl == -1 then
      return math.huge
    end
    most = math.max(most, ttl)
  end
  return count > 64 and math.huge or most
end
