-- hold: records that a tenure has the blocks of a path. It changes nodes in memory; `commit` of log.lua writes them to
-- Redis. What else it calls is in tree.lua and holders.lua.
--
-- ARGV  6: tenure  7: tier  8: hashes of the path, 8 bytes each  9: where the walk may begin: depth of a node of
--       which the tenure holds something, 0 for the root  10: seconds within which a use is not written again
-- Returns the sequence number of the shard.
verbs.hold = function(keys, args)
  begin(keys)
  look_at_the_clock()
  local tenure, tier, hashes, fresh = tonumber(args[6]), tonumber(args[7]), args[8], tonumber(args[10])
  local blocks, parent = #hashes / 8, false
  local at, node = start(hashes, tonumber(args[9]))
  -- A tenure that holds something of a node in a tier holds everything above it in that tier.
  if node and held(node, tenure, tier) == 0 then at = 0 end
  while at < blocks do
    local key = sub(hashes, at * 8 + 1, at * 8 + 8)
    node = load(key)
    if node and node.depth ~= at then
      order = {} -- The path does not fit this tree: nothing is changed.
      break
    end
    if not node and parent and parent.children == 0 and parent.length < RUN_MAX then
      -- The run of a leaf grows.
      local before = parent.length
      local more = min(blocks - at, RUN_MAX - before)
      set_run(parent, before, sub(hashes, at * 8 + 1, (at + more) * 8))
      raise_held(parent, tenure, tier, before + more)
      at = at + more
    else
      local agreed
      if node then
        agreed = common(node, hashes, at)
        if agreed < node.length and at + agreed < blocks then split(node, agreed) end
        if now - node.used > fresh then
          node.used = now
          touch(node)
        end
      else
        agreed = min(blocks - at, RUN_MAX)
        node = new_node(key, at, parent and parent.key or NONE, sub(hashes, at * 8 + 1, (at + agreed) * 8))
        if parent then
          parent.children = parent.children + 1
          touch(parent)
        end
      end
      raise_held(node, tenure, tier, agreed)
      at, parent = at + agreed, node
    end
  end
  return commit(args)
end
