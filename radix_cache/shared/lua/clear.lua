-- clear: a namespace is empty, whoever held what.
--
-- Gives the sequence.
if redis.call('EXISTS', tree) == 1 then
  redis.call('UNLINK', tree)
  redis.call('HDEL', names, namespace)
  record('c')
end
return commit()
