-- Defines `members(n, field)`: the members of a claim of n permits. Each is one permit in
-- `records`, with the time at which it runs out.
local function members(n, field)
  local names = {field}
  for i = 2, n do
    names[i] = field .. ':' .. i
  end
  return names
end

-- Returns the scores and names of those that have one, as ZADD takes them.
local function there(names, scores)
  local found = {}
  for i, score in ipairs(scores) do
    if score then
      found[#found + 1] = score
      found[#found + 1] = names[i]
    end
  end
  return found
end
