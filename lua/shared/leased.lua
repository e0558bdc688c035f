-- Gives this `lock`, which the script has just created, its lease. Ends the script if the server
-- refuses that.
local leased = redis.pcall('PEXPIRE', lock, lease_ms)
if leased ~= 1 then
  -- The user may not call PEXPIRE, perhaps not DEL either, but may call SET. No lock must remain
  -- without a lease.
  if redis.pcall('DEL', lock) ~= 1 then
    redis.call('SET', lock, '', 'PX', 1)
  end
  -- Redis before 7.2 does not say which command it refused.
  if type(leased) == 'table' then
    leased['err'] = leased['err'] .. ", refused: 'pexpire'"
  end
  return leased
end
