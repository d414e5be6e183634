-- predict: records that a request brings a path to a tenure, until it is withdrawn or its time is over.
--
-- ARGV  6: id of the prediction  7: tenure  8: milliseconds  9: key of the node that has the block before the first
--       of these hashes, zeros if there is none  10: its depth  11: hashes of what the tenure does not hold yet, perhaps none
--       12: how many predictions a shard may have
-- Returns the sequence number of the shard; a shard that is full of predictions takes no more.
verbs.predict = function(keys, args)
  begin(keys)
  look_at_the_clock()
  if call('HLEN', predictions) < tonumber(args[12]) then
    local value = pack('<I4I8', tonumber(args[7]), now_ms + tonumber(args[8])) .. args[9]
      .. pack('<I4', tonumber(args[10])) .. args[11]
    call('HSET', predictions, args[6], value)
    record('p', args[6], pack('<I4', #value), value)
  end
  return commit(args)
end
