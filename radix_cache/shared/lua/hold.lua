-- hold: a tenure has these blocks, from a place in the tree on. The prediction that foretold it is done.
--
-- ARGV  6: tenure  7: key of a node above the first block, zeros for a whole path
--       8: depth of the first block  9: hashes, 8 bytes each  10: id of a prediction, or empty
--       11: seconds within which a use need not be written down again
-- Gives {sequence, 1}; {sequence, 0} if the place is not there, or not held up to it: nothing is changed then.
local tenure, depth, hashes, fresh = tonumber(ARGV[6]), tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[11])
local blocks = #hashes / 8

local function use(node)
  if now - node.used > fresh then
    node.used = now
    touch(node)
  end
end

local function hold()
  local node, from, at = false, 0, 0
  if ARGV[7] ~= NONE then
    node = resolve(ARGV[7], depth - 1)
    if not node then return 0 end
    from = depth - node.depth
    if count_of(node, tenure) < from then return 0 end
  end
  while at < blocks do
    if not node or from == node.length then
      local key = sub(hashes, at * 8 + 1, at * 8 + 8)
      local child = load(key)
      if child and child.depth ~= depth + at then return 0 end
      if not child then
        if node and node.children == 0 and node.length < RUN_MAX then
          -- A leaf's run grows.
          local more = math.min(blocks - at, RUN_MAX - node.length)
          set_run(node, run_of(node) .. sub(hashes, at * 8 + 1, (at + more) * 8))
          child = node
        else
          local more = math.min(blocks - at, RUN_MAX)
          child = new_node(key, depth + at, node and node.key or NONE, sub(hashes, at * 8 + 1, (at + more) * 8))
          if node then
            node.children = node.children + 1
            touch(node)
          end
          from = 0
        end
      else
        from = 0
      end
      node = child
    end
    local agreed = common(node, from, hashes, at)
    if from + agreed < node.length and at + agreed < blocks then split(node, from + agreed) end
    if agreed > 0 and count_of(node, tenure) < from + agreed then set_count(node, tenure, from + agreed) end
    use(node)
    at, from = at + agreed, from + agreed
  end
  return 1
end

local held = hold()
if ARGV[10] ~= '' and redis.call('HDEL', predictions, ARGV[10]) == 1 then record('w', ARGV[10]) end
if held == 0 then order = {} end
return {commit(), held}
