-- clear: a namespace is empty, whoever held what.
--
-- Gives the sequence.
verbs.clear = function(keys, args)
  begin(keys)
  if call('EXISTS', tree) == 1 then
    call('UNLINK', tree)
    call('HDEL', names, args[3])
    record('c')
  end
  return commit(args)
end
