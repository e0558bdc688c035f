-- Ends a script, or a step of one, whose answer would be a vote: the server does not have the
-- memory that it was vetted with.
if not remembers then
  return {-1}
end
