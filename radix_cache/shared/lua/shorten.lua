-- shorten: leaves a tenure at most the first blocks of a path and nothing beyond them, in a tier and faster ones.
--
-- ARGV  6: tenure  7: tier  8: blocks to keep  9: hashes of the path
--       10: where the walk may begin: depth of the node with the first block to remove, 0 for the root
--       11: the nodes below, as the caller knows them: any number of keys, 8 bytes, the deepest first
-- Returns the sequence number of the shard.
verbs.shorten = function(keys, args)
  begin(keys)
  local tenure, tier, keep, hashes = tonumber(args[6]), tonumber(args[7]), tonumber(args[8]), args[9]
  local cut, at = {}, start(hashes, tonumber(args[10]))
  while at < #hashes / 8 do
    local node = load(sub(hashes, at * 8 + 1, at * 8 + 8))
    if not node or node.depth ~= at then break end
    local agreed = common(node, hashes, at)
    if keep < at + agreed then cut[#cut + 1] = node end
    at = at + agreed
    if agreed < node.length then break end
  end
  for from = 1, #args[11], 8 do
    local node = load(sub(args[11], from, from + 7))
    if node and lower_held(node, tenure, tier, 0) then tidy(node) end
  end
  for index = #cut, 1, -1 do
    local node = cut[index]
    if not node.gone and lower_held(node, tenure, tier, max(keep - node.depth, 0)) then tidy(node) end
  end
  return commit(args)
end
