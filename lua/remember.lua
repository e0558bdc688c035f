-- Replaces what a server remembers as a whole, so that it stands under one digest only, and a vote can ask for that.
local function digest(vote)
  return string.sub(redis.sha1hex(vote), 1, 16)
end
local function remember(server, vote, lease, age)
  -- A user that may not write it loses nothing.
  redis.call('HSET', memory, 'lease', lease)
  redis.call('DEL', memory)
  redis.call('HSET', memory, 'server', server, 'vote', vote, 'lease', lease, 'age', age, digest(vote), '')
end
