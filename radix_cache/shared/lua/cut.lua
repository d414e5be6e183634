-- cut: leaves tenures at most so many leading blocks of nodes, in a tier and faster ones. Used to drop blocks of a
-- worker and to remove what ended tenures hold.
--
-- ARGV  6: tier  7: any number of (node key 8 bytes, tenure u32, blocks to keep u32), the deepest node first
-- Returns the sequence number of the shard. Nodes that do not exist are skipped.
verbs.cut = function(keys, args)
  begin(keys)
  local tier = tonumber(args[6])
  for at = 1, #args[7], 16 do
    local key, tenure, keep = unpack_('<c8I4I4', args[7], at)
    local node = load(key)
    if node then
      lower_held(node, tenure, tier, keep)
      tidy(node)
    end
  end
  return commit(args)
end
