-- Reports who a server is and what it remembers. A server that has no memory, or another server's,
-- begins a new one: it is shut until it is opened (open.lua).
-- KEYS[1]  the server's memory; without this key nothing is remembered, and nothing is written
-- ARGV[1]  the id of a memory that begins now
-- ARGV[2]  the longest lease of the locker that asks, in milliseconds
-- ARGV[3]  the number of servers that it was given
-- ARGV[4]  how much that counts beside another locker's number
-- Returns {run_id, role, master}                       no memory, or no master (the role may be
-- 'cluster'); host:port
--         {run_id, role, '', id, seats, lease, waited}  lease: the longest one that was announced; waited: for how long
--                                                       the server has been shut, in milliseconds; -1: it votes
local memory, begins, lease_ms, seats, rank = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local function told(info, name)
  return string.match(info, '\n' .. name .. ':([^\r\n]*)') or ''
end
local replication = redis.call('INFO', 'replication')
local server_info = redis.call('INFO', 'server')
local run, role = told(server_info, 'run_id'), told(replication, 'role')
if told(server_info, 'redis_mode') == 'cluster' then
  role = 'cluster'
end
if not memory or role ~= 'master' then
  local master = told(replication, 'master_host')
  return {run, role, master ~= '' and master .. ':' .. told(replication, 'master_port') or ''}
end

-- A master that was a replica for a while has kept its run id, but has the data of another server.
local second = told(replication, 'master_replid2')
local server = run .. second
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', memory, 'server', 'id', 'seats', 'lease', 'begun', 'named', 'rank')
local id, lease, begun = found[2], math.max(tonumber(found[4] or 0), lease_ms), tonumber(found[5] or 0)
-- A master whose replicas have been away for an hour forgets that it was once a replica, and
-- forgets nothing else.
local is_own = found[1] == server or (found[1] and string.find(second, '^0*$') and string.sub(found[1], 1, #run) == run)
if not is_own or not id or redis.call('HEXISTS', memory, id) == 0 then
  id, begun, found[3] = begins, now, seats
  -- Fails before anything is deleted if the user may not write the memory.
  redis.call('HSET', memory, 'lease', lease)
  redis.call('DEL', memory)
  redis.call('HSET', memory, 'server', server, 'id', id, id, '')
  redis.call('HSET', memory, 'seats', seats, 'lease', lease, 'begun', begun, 'named', now, 'rank', rank)
elseif begun > 0 then
  -- The number that counts most has the say, until no client has named it for the longest lease.
  if rank >= tonumber(found[7] or 0) or math.abs(now - tonumber(found[6] or 0)) > lease then
    found[3] = seats
    redis.call('HSET', memory, 'seats', seats, 'named', now, 'rank', rank)
  end
  -- If the clock was set back, the wait begins again.
  begun = math.min(begun, now)
  redis.call('HSET', memory, 'lease', lease, 'begun', begun)
elseif found[3] == seats and tostring(lease) ~= found[4] then
  redis.call('HSET', memory, 'lease', lease)
end
return {run, role, '', id, found[3], lease, begun == 0 and -1 or now - begun}
