-- withdraw: removes predictions of requests that have ended, or that are over.
--
-- ARGV  6: ids, 16 bytes each
-- Returns the sequence number of the shard.
verbs.withdraw = function(keys, args)
  begin(keys)
  for at = 1, #args[6], 16 do
    local id = sub(args[6], at, at + 15)
    local size = call('HSTRLEN', predictions, id)
    if size > 0 then
      call('HDEL', predictions, id)
      call('HINCRBY', meta, 'predicted', -size)
      record('w', id)
    end
  end
  return commit(args)
end
