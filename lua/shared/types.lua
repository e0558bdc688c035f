-- Reports what is under keys, after an error that does not name one.
-- KEYS     the keys
-- Returns the type of each, as TYPE returns it
local types = {}
for i = 1, #KEYS do
  types[i] = redis.call('TYPE', KEYS[i])['ok']
end
return types
