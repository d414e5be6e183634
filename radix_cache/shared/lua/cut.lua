-- cut: tenures have at most so many leading blocks of these nodes. Shortening, forgetting, sweeping are this.
--
-- ARGV  6: any number of (node key 8 bytes, tenure u32, blocks to keep u32), the deepest node first
-- Gives the sequence. What is not there is passed over.
for at = 1, #ARGV[6], 16 do
  local key, tenure, keep = unpack_('<c8I4I4', ARGV[6], at)
  local node = load(key)
  if node and count_of(node, tenure) > keep then set_count(node, tenure, keep) end
  if node then tidy(node) end
end
return commit()
