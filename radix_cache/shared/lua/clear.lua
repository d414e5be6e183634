-- clear: removes all nodes of a namespace.
--
-- Returns the sequence number of the shard.
verbs.clear = function(keys, args)
  begin(keys)
  if call('EXISTS', tree) == 1 then
    call('UNLINK', tree)
    call('HDEL', names, args[3])
    record('c')
  end
  return commit(args)
end
