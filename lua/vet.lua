-- Reports who a server is and what it remembers. A server that has no memory, or another server's, begins a new one.
-- KEYS[1]  the server's memory; without this key nothing is remembered, and nothing is written
-- ARGV[1]  the memory of a server that begins a new one
-- ARGV[2]  the longest lease of the locker that asks, in milliseconds
-- ARGV[3]  the memory that this locker saw last ..
-- ARGV[4]  .. and for how long it has been listed, at least, in milliseconds
-- Returns {run_id, role, master}                  no memory, or no master (the role may be 'cluster'); host:port
--         {run_id, role, '', memory, lease, age}  lease: the longest one that lockers announced; age: how long it has
--                                                 been listed
local memory = KEYS[1]
local begun, lease_ms, last, age_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

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

-- remember.lua
-- A master that was a replica for a while has kept its run id, but has the data of another server.
local second = told(replication, 'master_replid2')
local server = run .. second
local found = redis.call('HMGET', memory, 'server', 'vote', 'lease', 'age')
local vote, lease, age = found[2], tonumber(found[3] or 0), tonumber(found[4] or 0)
-- A master whose replicas have been away for an hour forgets that it was once a replica, and forgets nothing else.
local is_own = found[1] == server or (found[1] and string.find(second, '^0*$') and string.sub(found[1], 1, #run) == run)
if not is_own or not vote or redis.call('HEXISTS', memory, digest(vote)) == 0 then
  vote, age = begun, 0
  remember(server, vote, lease, age)
end
if lease < tonumber(lease_ms) then
  lease = tonumber(lease_ms)
  redis.call('HSET', memory, 'lease', lease)
end
if vote == last and age < tonumber(age_ms) then
  age = tonumber(age_ms)
  redis.call('HSET', memory, 'age', age)
end
return {run, role, '', vote, lease, age}
