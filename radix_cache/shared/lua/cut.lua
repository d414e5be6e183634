-- cut: tenures have at most so many leading blocks of these nodes, in a tier and those before it. Forgetting and
-- sweeping are this.
--
-- ARGV  6: tier  7: any number of (node key 8 bytes, tenure u32, blocks to keep u32), the deepest node first
-- Gives the sequence. What is not there is passed over.
verbs.cut = function(keys, args)
  begin(keys)
  local tier = tonumber(args[6])
  for at = 1, #args[7], 16 do
    local key, tenure, keep = unpack_('<c8I4I4', args[7], at)
    local node = load(key)
    if node then
      lower(node, tenure, tier, keep)
      tidy(node)
    end
  end
  return commit(args)
end
