-- shorten: a tenure has at most the first blocks of a path, and nothing beyond them.
--
-- ARGV  6: tenure  7: blocks to keep  8: hashes of the path
--       9: nodes that hang below, as the caller knows them: any number of keys, 8 bytes, the deepest first
-- Gives the sequence.
local tenure, keep, hashes = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local cut, at = {}, 0
while at < #hashes / 8 do
  local node = load(sub(hashes, at * 8 + 1, at * 8 + 8))
  if not node or node.depth ~= at then break end
  local agreed = common(node, 0, hashes, at)
  if keep < at + agreed then cut[#cut + 1] = node end
  at = at + agreed
  if agreed < node.length then break end
end
for from = 1, #ARGV[9], 8 do
  local node = load(sub(ARGV[9], from, from + 7))
  if node then
    set_count(node, tenure, 0)
    tidy(node)
  end
end
for index = #cut, 1, -1 do
  local node = cut[index]
  local left = math.max(keep - node.depth, 0)
  if not node.gone and count_of(node, tenure) > left then
    set_count(node, tenure, left)
    tidy(node)
  end
end
return commit()
