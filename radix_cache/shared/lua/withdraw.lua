-- withdraw: predictions that did not come true, or whose time is over.
--
-- ARGV  6: ids, 16 bytes each
-- Gives the sequence.
for at = 1, #ARGV[6], 16 do
  local id = sub(ARGV[6], at, at + 15)
  if redis.call('HDEL', predictions, id) == 1 then record('w', id) end
end
return commit()
