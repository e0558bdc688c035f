-- Returns the refusal of a server that was asked whether the lock is `held`. A key of another type
-- is no refusal: it is somebody else's lock, and `held` is an error, like nothing that a field or a
-- value could be.
if type(held) == 'table' and not string.find(held['err'], 'WRONGTYPE', 1, true) then
  return held
end
