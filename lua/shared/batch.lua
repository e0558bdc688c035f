-- Runs many acquires, releases and hand-overs in one script. Each is a step, and does not affect
-- the others.
-- KEYS  two per step: those of its own script
-- ARGV  for each step its name, followed by the ARGV of its own script
-- Returns an array: for each step what its script returns, or the error that ended it
local function acquire(KEYS, ARGV)
-- acquire.lua
end

local function enlist(KEYS, ARGV)
-- enlist.lua
end

local function release(KEYS, ARGV)
-- release.lua
end

local function hand_over(KEYS, ARGV)
-- hand_over.lua
end

local steps = {acquire = acquire, enlist = enlist, release = release, hand_over = hand_over}
local words = {acquire = 3, enlist = 7, release = 3, hand_over = 4}

local keys, args, answers, at = {}, {}, {}, 1
for i = 1, math.floor(#KEYS / 2) do
  local name = ARGV[at]
  keys[1], keys[2] = KEYS[2 * i - 1], KEYS[2 * i]
  for n = 1, words[name] do
    args[n] = ARGV[at + n]
  end
  at = at + 1 + words[name]
  local ok, answer = pcall(steps[name], keys, args)
  -- Redis 6 raises an error as a string.
  if not ok and type(answer) == 'string' then
    answer = {err = answer}
  end
  answers[i] = answer
end
return answers
