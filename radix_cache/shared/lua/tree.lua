-- The nodes of one namespace's tree, read and changed in memory; log.lua writes the changes to Redis.
--
-- KEYS  1: tree  2: log  3: meta  4: names  5: predictions        all of one shard, one hash tag
-- ARGV  1: tip (8 random bytes that name this change)  2: channel  3: namespace id (8 bytes)  4: entries kept in log
--       5: name of the namespace, as `names` keeps it
--
-- A node is addressed by the hash of its first block (8 bytes, little-endian). Fields of the tree's hash:
--
--    N<key>         head, and up to 32 holders      H<key><u16>   further holders, in chunks of up to 32
--    R<key>         run of block hashes
--
--    head    sequence u64, depth u32, length u32, children u32, used u32 (seconds), level u8,
--            last hash of the run, key of the lower half after a split, key of a node above (zeros: none)
--    holder  tenure u32, leading blocks by tier u32 (holders.lua);  it is in chunk  tenure % 2^level,
--            chunk 0 within N
--
-- `above` is the key that the parent had when the node was made: after splits the parent is found by following
-- `next` from there, so that no split rewrites the nodes below it.
local HEAD, HEAD_BYTES = '<I8I4I4I4I4Bc8c8c8', 49
local NONE = '\0\0\0\0\0\0\0\0'
local HOLDERS_MAX, LEVEL_MAX, RUN_MAX, HOPS_MAX = 32, 10, 512, 4096
local TIERS = 1024

-- While a library is loaded, only `redis.register_function` exists: the first call sets these.
local sub, find_, pack, unpack_, floor, min, max, call

-- State of the current call; a server runs one call at a time.
local tree, log, meta, names, predictions, namespace, now, now_ms
local nodes, order, records

local verbs = {}

local function begin(keys)
  if not call then
    sub, find_, pack, unpack_ = string.sub, string.find, struct.pack, struct.unpack
    floor, min, max, call = math.floor, math.min, math.max, redis.call
  end
  tree, log, meta, names, predictions = keys[1], keys[2], keys[3], keys[4], keys[5]
  nodes, order, records = {}, {}, {''}
end

-- For operations that depend on the time.
local function look_at_the_clock()
  local time = call('TIME')
  now = tonumber(time[1])
  now_ms = now * 1000 + floor(time[2] / 1000)
end

local function load(key)
  local node = nodes[key]
  if node ~= nil then return node end
  local raw = key ~= NONE and call('HGET', tree, 'N' .. key)
  if not raw then
    nodes[key] = false
    return false
  end
  local sequence, depth, length, children, used, level, last, below, above = unpack_(HEAD, raw)
  node = {
    key = key, depth = depth, length = length, children = children, used = used, level = level, last = last,
    next = below, above = above, first = sub(raw, HEAD_BYTES + 1), kept = length,
  }
  nodes[key] = node
  return node
end

local function touch(node)
  if not node.changed then
    node.changed = true
    order[#order + 1] = node
  end
end

local function run_of(node)
  if not node.run then node.run = call('HGET', tree, 'R' .. node.key) end
  return node.run
end

-- Replaces everything behind the first `count` blocks of the run by `more`. Readers get what is behind `kept`.
-- Creating long strings is the main cost: nothing is cut out of a run without need.
local function set_run(node, count, more)
  local run = run_of(node)
  if count < node.length then run = sub(run, 1, count * 8) end
  node.run = more == '' and run or run .. more
  if count <= node.kept then
    node.kept, node.grown = count, more
  else
    node.grown = sub(node.run, node.kept * 8 + 1)
  end
  node.length = count + #more / 8
  node.last = sub(node.run, -8)
  touch(node)
end

local function new_node(key, depth, above, run)
  local node = {
    key = key, depth = depth, length = #run / 8, children = 0, used = now, level = 0, last = sub(run, -8),
    next = NONE, above = above, first = '', kept = 0, run = run, grown = run,
  }
  nodes[key] = node
  touch(node)
  return node
end

-- Returns the node with the block at this depth, following splits from node `key`; false if it is gone.
local function resolve(key, depth)
  local node = load(key)
  for _ = 1, HOPS_MAX do
    if not node or depth < node.depth then return false end
    if depth < node.depth + node.length then return node end
    node = load(node.next)
  end
  return false
end

-- Returns how many leading blocks the run has in common with the path from its block `at` on.
-- Since hashes are chained, they agree on a block only if they agree on all blocks before it.
local function common(node, hashes, at)
  local most = min(node.length, #hashes / 8 - at)
  local from = (at + most) * 8
  if most == node.length and sub(hashes, from - 7, from) == node.last then return most end
  local run = run_of(node)
  if sub(hashes, from - 7, from) == sub(run, most * 8 - 7, most * 8) then return most end
  local low, high = 0, most - 1
  while low < high do
    local middle = floor((low + high + 1) / 2)
    from = (at + middle) * 8
    if sub(run, middle * 8 - 7, middle * 8) == sub(hashes, from - 7, from) then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

-- Returns where a walk along the path begins: at the node that the caller named if it exists, else at the root.
local function start(hashes, since)
  if since > 0 then
    local node = load(sub(hashes, since * 8 + 1, since * 8 + 8))
    if node and node.depth == since then return since, node end
  end
  return 0, false
end
