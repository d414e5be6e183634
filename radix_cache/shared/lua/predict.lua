-- predict: records that a request brings a path to a tenure, until it is withdrawn or its time is over.
--
-- ARGV  6: id of the prediction  7: tenure  8: milliseconds  9: key of the node that has the block before the first
--       of these hashes, zeros if there is none  10: its depth  11: hashes of what the tenure does not hold yet, perhaps none
--       12: how many predictions a shard may have
-- Returns the sequence number of the shard; a shard that is full of predictions takes no more.

-- Half a million blocks, of eight million tokens on their way. Of requests beyond that other gateways do not know.
local PREDICTED_BYTES_MAX = 4 * 2 ^ 20

verbs.predict = function(keys, args)
  begin(keys)
  look_at_the_clock()
  local count = call('HLEN', predictions)
  local bytes = count > 0 and tonumber(call('HGET', meta, 'predicted') or '0') or 0
  if count < tonumber(args[12]) and bytes + #args[11] <= PREDICTED_BYTES_MAX then
    local value = pack('<I4I8', tonumber(args[7]), now_ms + tonumber(args[8])) .. args[9]
      .. pack('<I4', tonumber(args[10])) .. args[11]
    bytes = bytes + #value - call('HSTRLEN', predictions, args[6])
    call('HSET', predictions, args[6], value)
    call('HSET', meta, 'predicted', max(bytes, 0))
    record('p', args[6], pack('<I4', #value), value)
  end
  return commit(args)
end
