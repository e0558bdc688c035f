-- Adds to the reply what a renewal answered about the `i`th key: nothing if it is 1, renewed. Ends
-- the script if the server takes no writes.
if answer == 1 then
  renewed = renewed + 1
else
  if type(answer) == 'table' then
    -- A replica refuses every write: its error is the answer to the whole script.
    if string.find(answer['err'], 'READONLY', 1, true) then
      return answer
    end
    answer = answer['err']
  end
  reply[#reply + 1] = i
  reply[#reply + 1] = answer
end
