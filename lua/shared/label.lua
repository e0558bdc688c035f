-- Writes what a locker calls itself, for those who ask who holds a lock, or deletes it.
-- KEYS[1]  the label of the locker
-- ARGV[1]  its text; empty: it is deleted
-- ARGV[2]  how long it stays, in milliseconds
-- Returns 1
local label = KEYS[1]
local text, lifetime = ARGV[1], ARGV[2]

if text == '' then
  redis.call('DEL', label)
else
  redis.call('SET', label, text, 'PX', lifetime)
end
return 1
