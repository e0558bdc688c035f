-- Replaces the memory of a server as a whole: it then has one digest only, and a vote can ask for that digest.
local function digest(vote)
  return string.sub(redis.sha1hex(vote), 1, 16)
end
local function remember(server, vote, lease, age)
  -- Fails before anything is deleted if the user may not write the memory.
  redis.call('HSET', memory, 'lease', lease)
  redis.call('DEL', memory)
  redis.call('HSET', memory, 'server', server, 'vote', vote, 'lease', lease, 'age', age, digest(vote), '')
end
