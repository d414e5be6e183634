-- evict: removes leaves that were not used after the caller looked at them, with all their holders.
--
-- ARGV  6: any number of (node key 8 bytes, used u32)
-- Returns the sequence number of the shard. A node that was used later, or has children by now, stays.
verbs.evict = function(keys, args)
  begin(keys)
  for at = 1, #args[6], 12 do
    local key, used = unpack_('<c8I4', args[6], at)
    local node = load(key)
    if node and node.children == 0 and node.used <= used then
      for index = 0, 2 ^ node.level - 1 do set_chunk(node, index, '') end
      tidy(node)
    end
  end
  return commit(args)
end
