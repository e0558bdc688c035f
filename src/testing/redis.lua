-- What a Redis is for the scripts: keys, and the commands that the scripts call, each as Redis has
-- it. Only what the scripts use is there: another command, or an option that is not here, is an
-- error. Rights of users, a limit of the memory, and replicas are not modelled. Integers are exact
-- up to 2^53, and larger ones are refused. Called once, with functions to hash a text, to publish a
-- message, and to count the subscribers of a channel.
local sha1hex, publish, subscribers = ...

-- By key: its kind, its value, and when it expires, in milliseconds, or nil.
local entries = {}
-- Set when a script begins: as in Redis, the clock stands still while it runs.
local now_us, now_ms = 0, 0
local about = {}

local function refuse(text)
  error({err = text})
end

-- A key still exists in the millisecond in which its lease ends, and is gone in the next one.
local function find(key, kind)
  local entry = entries[key]
  if entry and entry.expires and now_ms > entry.expires then
    entries[key], entry = nil, nil
  end
  if entry and kind and entry.kind ~= kind then
    refuse('WRONGTYPE Operation against a key holding the wrong kind of value')
  end
  return entry
end

local function integer(text)
  local number = string.find(text, '^-?[1-9]%d*$') and tonumber(text) or text == '0' and 0
  if not number or math.abs(number) > 9007199254740992 then
    refuse('ERR value is not an integer or out of range')
  end
  return number
end

local function spelled(number)
  return string.format('%.0f', number)
end

-- An argument of a command as Redis reads it.
local function word(value)
  if type(value) == 'number' then
    return string.format('%.17g', value)
  elseif type(value) ~= 'string' then
    refuse('ERR Lua redis lib command arguments must be strings or integers')
  end
  return value
end

-- A hash keeps its fields in the order in which they were added, as Redis does while it is small.
local function hash(key)
  local entry = find(key, 'hash') or {kind = 'hash', fields = {}, order = {}}
  entries[key] = entry
  return entry
end

-- Writes a field, and returns 1 if it is new.
local function write(entry, field, value)
  local is_new = entry.fields[field] == nil
  if is_new then
    entry.order[#entry.order + 1] = field
  end
  entry.fields[field] = value
  return is_new and 1 or 0
end

local function rank(entry, name)
  for at, member in ipairs(entry and entry.members or {}) do
    if member.name == name then
      return at
    end
  end
end

-- A limit of scores, which may be infinite.
local function limit(text)
  return text == '-inf' and -math.huge or text == '+inf' and math.huge or tonumber(text)
    or refuse('ERR min or max is not a float')
end

local function within(member, lowest, highest)
  return member.score >= lowest and member.score <= highest
end

-- The items of a list, which may not be there.
local function items(key)
  local entry = find(key, 'list')
  return entry and entry.items or {}
end

local function drop_if_empty(key)
  if #items(key) == 0 then
    entries[key] = nil
  end
end

-- The items from one place to another, which count from the end if they are negative.
local function range(first, last, all)
  local chosen = {}
  first, last = first < 0 and first + #all or first, last < 0 and last + #all or last
  for at = first + 1, math.min(last + 1, #all) do
    chosen[#chosen + 1] = all[at]
  end
  return chosen
end

local function raise(key, number)
  local entry = find(key, 'string') or {kind = 'string', text = '0'}
  local raised = integer(entry.text) + number
  entries[key], entry.text = entry, spelled(raised)
  return raised
end

local commands = {
  GET = function(key)
    local entry = find(key, 'string')
    return entry and entry.text or false
  end,
  MGET = function(...)
    local texts = {}
    for i, key in ipairs({...}) do
      -- A key of another type does not exist for it.
      local entry = find(key)
      texts[i] = entry and entry.text or false
    end
    return texts
  end,
  SET = function(key, text, option, lifetime)
    local expires, reply = nil, {ok = 'OK'}
    if option == 'GET' then
      local before = find(key, 'string')
      reply = before and before.text or false
    elseif option == 'PX' then
      expires = now_ms + integer(lifetime)
      if expires <= now_ms then
        refuse("ERR invalid expire time in 'set' command")
      end
    elseif option == 'KEEPTTL' then
      local before = find(key)
      expires = before and before.expires
    elseif option then
      refuse('ERR syntax error')
    end
    entries[key] = {kind = 'string', text = text, expires = expires}
    return reply
  end,
  INCR = function(key)
    return raise(key, 1)
  end,
  DECR = function(key)
    return raise(key, -1)
  end,
  INCRBY = function(key, number)
    return raise(key, integer(number))
  end,
  TYPE = function(key)
    local entry = find(key)
    return {ok = entry and entry.kind or 'none'}
  end,
  EXISTS = function(key)
    return find(key) and 1 or 0
  end,
  DEL = function(key)
    local found = find(key)
    entries[key] = nil
    return found and 1 or 0
  end,
  PTTL = function(key)
    local entry = find(key)
    return not entry and -2 or entry.expires and entry.expires - now_ms or -1
  end,
  PEXPIRE = function(key, lifetime)
    local expires, entry = now_ms + integer(lifetime), find(key)
    if not entry then
      return 0
    end
    entry.expires = expires
    if expires <= now_ms then
      entries[key] = nil
    end
    return 1
  end,
  PERSIST = function(key)
    local entry = find(key)
    if not entry or not entry.expires then
      return 0
    end
    entry.expires = nil
    return 1
  end,
  HEXISTS = function(key, field)
    local entry = find(key, 'hash')
    return entry and entry.fields[field] and 1 or 0
  end,
  HGET = function(key, field)
    local entry = find(key, 'hash')
    return entry and entry.fields[field] or false
  end,
  HLEN = function(key)
    local entry = find(key, 'hash')
    return entry and #entry.order or 0
  end,
  HDEL = function(key, field)
    local entry = find(key, 'hash')
    if not entry or not entry.fields[field] then
      return 0
    end
    entry.fields[field] = nil
    for at, other in ipairs(entry.order) do
      if other == field then
        table.remove(entry.order, at)
        break
      end
    end
    if #entry.order == 0 then
      entries[key] = nil
    end
    return 1
  end,
  HMGET = function(key, ...)
    local entry, values = find(key, 'hash'), {}
    for i, field in ipairs({...}) do
      values[i] = entry and entry.fields[field] or false
    end
    return values
  end,
  HGETALL = function(key)
    local entry, words = find(key, 'hash'), {}
    for i, field in ipairs(entry and entry.order or {}) do
      words[2 * i - 1], words[2 * i] = field, entry.fields[field]
    end
    return words
  end,
  HSET = function(key, ...)
    local pairs, added = {...}, 0
    if #pairs == 0 or #pairs % 2 == 1 then
      refuse("ERR wrong number of arguments for 'hset' command")
    end
    local entry = hash(key)
    for i = 1, #pairs, 2 do
      added = added + write(entry, pairs[i], pairs[i + 1])
    end
    return added
  end,
  HSETNX = function(key, field, value)
    local entry = hash(key)
    return entry.fields[field] and 0 or write(entry, field, value)
  end,
  ZADD = function(key, ...)
    local words, added = {...}, 0
    local option = (words[1] == 'XX' or words[1] == 'NX' or words[1] == 'GT') and table.remove(words, 1)
    if #words == 0 or #words % 2 == 1 then
      refuse('ERR syntax error')
    end
    for i = 1, #words, 2 do
      words[i] = tonumber(words[i]) or refuse('ERR value is not a valid float')
    end
    local entry = find(key, 'zset') or {kind = 'zset', members = {}}
    for i = 1, #words, 2 do
      local at = rank(entry, words[i + 1])
      if option == 'GT' and at and entry.members[at].score >= words[i] then
        -- It stays as it is.
      elseif not option or option == 'GT' or (option == 'XX') == (at ~= nil) then
        entry.members[at or #entry.members + 1] = {name = words[i + 1], score = words[i]}
        added = added + (at and 0 or 1)
      end
    end
    if #entry.members > 0 then
      entries[key] = entry
    end
    table.sort(entry.members, function(one, other)
      return one.score < other.score or (one.score == other.score and one.name < other.name)
    end)
    return added
  end,
  ZREM = function(key, ...)
    local entry, removed = find(key, 'zset'), 0
    for _, name in ipairs({...}) do
      local at = rank(entry, name)
      if at then
        table.remove(entry.members, at)
        removed = removed + 1
      end
    end
    if entry and #entry.members == 0 then
      entries[key] = nil
    end
    return removed
  end,
  ZMSCORE = function(key, ...)
    local entry, scores = find(key, 'zset'), {}
    for i, name in ipairs({...}) do
      local at = rank(entry, name)
      scores[i] = at and word(entry.members[at].score) or false
    end
    return scores
  end,
  ZSCORE = function(key, name)
    local entry = find(key, 'zset')
    local at = rank(entry, name)
    return at and word(entry.members[at].score) or false
  end,
  ZCOUNT = function(key, lowest, highest)
    lowest, highest = limit(lowest), limit(highest)
    local entry, count = find(key, 'zset'), 0
    for _, member in ipairs(entry and entry.members or {}) do
      count = count + (within(member, lowest, highest) and 1 or 0)
    end
    return count
  end,
  ZREMRANGEBYSCORE = function(key, lowest, highest)
    lowest, highest = limit(lowest), limit(highest)
    local entry, kept = find(key, 'zset'), {}
    if not entry then
      return 0
    end
    for _, member in ipairs(entry.members) do
      if not within(member, lowest, highest) then
        kept[#kept + 1] = member
      end
    end
    local removed = #entry.members - #kept
    entry.members = kept
    if #kept == 0 then
      entries[key] = nil
    end
    return removed
  end,
  ZCARD = function(key)
    local entry = find(key, 'zset')
    return entry and #entry.members or 0
  end,
  ZRANK = function(key, name)
    local at = rank(find(key, 'zset'), name)
    return at and at - 1 or false
  end,
  ZRANGE = function(key, first, last, option)
    if option and option ~= 'WITHSCORES' then
      refuse('ERR syntax error')
    end
    first, last = integer(first), integer(last)
    local entry, words = find(key, 'zset'), {}
    for _, member in ipairs(range(first, last, entry and entry.members or {})) do
      words[#words + 1] = member.name
      words[#words + 1] = option and word(member.score)
    end
    return words
  end,
  LRANGE = function(key, first, last)
    return range(integer(first), integer(last), items(key))
  end,
  LINDEX = function(key, at)
    local entry = find(key, 'list')
    at = entry and integer(at)
    return entry and entry.items[at < 0 and at + #entry.items + 1 or at + 1] or false
  end,
  RPUSH = function(key, ...)
    local entry = find(key, 'list') or {kind = 'list', items = {}}
    for _, item in ipairs({...}) do
      entry.items[#entry.items + 1] = item
    end
    entries[key] = entry
    return #entry.items
  end,
  LPOP = function(key)
    local item = table.remove(items(key), 1) or false
    drop_if_empty(key)
    return item
  end,
  LREM = function(key, most, item)
    most = integer(most)
    if most < 1 then
      refuse('ERR syntax error')
    end
    local list, removed, at = items(key), 0, 1
    while at <= #list and removed < most do
      if list[at] == item then
        table.remove(list, at)
        removed = removed + 1
      else
        at = at + 1
      end
    end
    drop_if_empty(key)
    return removed
  end,
  PUBLISH = function(channel, text)
    return publish(channel, text)
  end,
  PUBSUB = function(what, ...)
    if what ~= 'NUMSUB' then
      refuse("ERR unknown subcommand '" .. what .. "'")
    end
    local counts = {}
    for i, channel in ipairs({...}) do
      counts[2 * i - 1], counts[2 * i] = channel, subscribers(channel)
    end
    return counts
  end,
  TIME = function()
    local seconds = math.floor(now_us / 1000000)
    return {spelled(seconds), spelled(now_us - seconds * 1000000)}
  end,
  INFO = function(section)
    return about[section] or refuse('ERR a server in memory has no such section')
  end,
}

local function call(name, ...)
  local words = {...}
  for i = 1, select('#', ...) do
    words[i] = word(words[i])
  end
  local command = commands[name] or refuse('ERR a server in memory does not have the command ' .. tostring(name))
  return command(unpack(words))
end

redis = {
  call = call,
  pcall = function(...)
    local ok, reply = pcall(call, ...)
    if not ok and type(reply) ~= 'table' then
      error(reply, 0)
    end
    return reply
  end,
  error_reply = function(text)
    return {err = text}
  end,
  status_reply = function(text)
    return {ok = text}
  end,
  sha1hex = sha1hex,
}

-- Nothing goes over a network, so nothing is packed.
cmsgpack = {
  pack = function(...)
    return ...
  end,
}

-- Lua would take a name that is misspelt, or a missing `local`, for a global variable. Redis does
-- not.
setmetatable(_G, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function(_, name)
    error("Attempt to modify a readonly table: global variable '" .. tostring(name) .. "'", 2)
  end,
})

-- What the server itself can do.
local server = {}

function server.set_clock(us)
  now_us, now_ms = us, math.floor(us / 1000)
end

function server.run(script, us, keys, args)
  server.set_clock(us)
  rawset(_G, 'KEYS', keys)
  rawset(_G, 'ARGV', args)
  return script()
end

-- Begins with these keys, as `snapshot` returns them.
function server.restore(snapshot)
  entries = {}
  for _, kept in ipairs(snapshot) do
    local key, kind, expires, words = unpack(kept)
    local entry = {kind = kind, expires = expires or nil, text = kind == 'string' and words[1] or nil}
    if kind == 'hash' then
      entry.fields, entry.order = {}, {}
      for i = 1, #words, 2 do
        write(entry, words[i], words[i + 1])
      end
    elseif kind == 'list' then
      entry.items = words
    elseif kind == 'zset' then
      entry.members = {}
      for i = 1, #words, 2 do
        entry.members[(i + 1) / 2] = {name = words[i], score = tonumber(words[i + 1])}
      end
    end
    entries[key] = entry
  end
end

function server.snapshot()
  local snapshot, read = {}, {string = 'GET', hash = 'HGETALL', list = 'LRANGE', zset = 'ZRANGE'}
  for key, entry in pairs(entries) do
    if find(key) then
      local words = commands[read[entry.kind]](key, '0', '-1', 'WITHSCORES')
      snapshot[#snapshot + 1] = {key, entry.kind, entry.expires or false, type(words) == 'table' and words or {words}}
    end
  end
  return snapshot
end

function server.delete(key)
  entries[key] = nil
end

-- Returns the owner in a lock's key.
function server.owner(key)
  local entry = find(key)
  return entry and (entry.text or entry.order and entry.order[1]) or false
end

-- Sets who the server is: the id of this run, and of the replication to which it belonged before.
function server.name(run_id, second_id)
  about['server'] = '# Server\r\nredis_mode:standalone\r\nrun_id:' .. run_id .. '\r\n'
  about['replication'] = '# Replication\r\nrole:master\r\nmaster_replid2:' .. second_id .. '\r\n'
end

return server
