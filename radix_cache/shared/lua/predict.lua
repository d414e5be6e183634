-- predict: a request brings this path to a tenure; it counts until it is withdrawn, held, or its time is over.
--
-- ARGV  6: id of the prediction  7: tenure  8: milliseconds  9: hashes  10: most predictions at one time
-- Gives the sequence; a shard that is full of predictions takes no more.
if redis.call('HLEN', predictions) < tonumber(ARGV[10]) then
  local value = pack('<I4I8', tonumber(ARGV[7]), now_ms + tonumber(ARGV[8])) .. ARGV[9]
  redis.call('HSET', predictions, ARGV[6], value)
  record('p', ARGV[6], pack('<I4', #value), value)
end
return commit()
