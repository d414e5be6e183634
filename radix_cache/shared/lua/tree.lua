#!lua
-- What every verb begins with: the nodes of one namespace's tree, read and changed in memory, written by `commit`.
--
-- KEYS  1: tree  2: log  3: meta  4: names  5: predictions        all of one shard, one hash tag
-- ARGV  1: tip (8 random bytes that name this change)  2: channel  3: namespace id (8 bytes)  4: entries kept in log
--       5: name of the namespace, as `names` keeps it
--
-- A node is addressed by the hash of its first block (8 bytes, little-endian). In the tree:
--
--    N<key>         head, and up to 32 holders      H<key><u16>   32 holders more, once there are that many
--    R<key>         sequence, run of block hashes
--
--    head    sequence u64, depth u32, length u32, children u32, used u32 (seconds), level u8,
--            last hash of the run, key of the lower half after a split, key of a node above (zeros: none)
--    holder  tenure u32, leading blocks u32;  it stands in chunk  tenure % 2^level,  chunk 0 within N
--
-- `above` is the key that the parent had when the node was made: after splits the parent is found by following
-- `next` from there, so that no split rewrites the nodes below it. Every change of a shard gets the next sequence
-- and goes to its log and to those who listen, with the tip of the change before: a reader that misses one notices.
local HEAD, HEAD_BYTES = '<I8I4I4I4I4Bc8c8c8', 49
local NONE = '\0\0\0\0\0\0\0\0'
local HOLDERS_MAX, LEVEL_MAX, RUN_MAX, HOPS_MAX = 32, 10, 512, 4096
local tree, log, meta, names, predictions = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local namespace = ARGV[3]
local sub, pack, unpack_ = string.sub, struct.pack, struct.unpack

local nodes, order, records = {}, {}, {}
local seconds = redis.call('TIME')
local now_ms = seconds[1] * 1000 + math.floor(seconds[2] / 1000)
local now = math.floor(seconds[1])

local function load(key)
  local node = nodes[key]
  if node ~= nil then return node end
  local raw = key ~= NONE and redis.call('HGET', tree, 'N' .. key)
  if not raw then
    nodes[key] = false
    return false
  end
  node = {key = key, chunks = {}, dirty = {}}
  node.sequence, node.depth, node.length, node.children, node.used, node.level, node.last, node.next, node.above =
    unpack_(HEAD, raw)
  node.chunks[0] = sub(raw, HEAD_BYTES + 1)
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
  if not node.run then node.run = sub(redis.call('HGET', tree, 'R' .. node.key), 9) end
  return node.run
end

local function set_run(node, run)
  node.run, node.length, node.rewritten = run, #run / 8, true
  node.last = sub(run, -8)
  touch(node)
end

local function chunk(node, index)
  local found = node.chunks[index]
  if found == nil then
    found = redis.call('HGET', tree, 'H' .. node.key .. pack('<I2', index)) or ''
    node.chunks[index] = found
  end
  return found
end

local function set_chunk(node, index, text)
  node.chunks[index] = text
  node.dirty[index] = true
  touch(node)
end

-- The holder's count, its chunk's index, and where in the chunk it stands (nil: it is no holder).
local function find(node, tenure)
  local index = tenure % 2 ^ node.level
  local text, wanted, from = chunk(node, index), pack('<I4', tenure), 1
  while true do
    local at = string.find(text, wanted, from, true)
    if not at then return 0, index, nil end
    if at % 8 == 1 then return unpack_('<I4', text, at + 4), index, at end
    from = at + 1
  end
end

local function count_of(node, tenure)
  local count = find(node, tenure)
  return count
end

local function set_count(node, tenure, count)
  local before, index, at = find(node, tenure)
  if before == count then return end
  local text = node.chunks[index]
  local entry = count > 0 and pack('<I4I4', tenure, count) or ''
  if at then
    text = sub(text, 1, at - 1) .. entry .. sub(text, at + 8)
  elseif #text < HOLDERS_MAX * 8 or node.level == LEVEL_MAX then
    text = text .. entry
  else
    -- Twice as many chunks, and each holder to its own.
    local holders = {}
    for old = 0, 2 ^ node.level - 1 do holders[old] = chunk(node, old) end
    local level = node.level + 1
    local parts = {}
    for old, holder_text in pairs(holders) do
      for from = 1, #holder_text, 8 do
        local to = unpack_('<I4', holder_text, from) % 2 ^ level
        parts[to] = (parts[to] or '') .. sub(holder_text, from, from + 7)
      end
    end
    node.level = level
    for new = 0, 2 ^ level - 1 do set_chunk(node, new, parts[new] or '') end
    return set_count(node, tenure, count)
  end
  set_chunk(node, index, text)
end

local function each_holder(node, visit)
  for index = 0, 2 ^ node.level - 1 do
    local text = chunk(node, index)
    for from = 1, #text, 8 do
      local tenure, count = unpack_('<I4I4', text, from)
      visit(tenure, count)
    end
  end
end

local function new_node(key, depth, above, run)
  local node = {
    key = key, depth = depth, children = 0, used = now, level = 0, next = NONE, above = above,
    chunks = {[0] = ''}, dirty = {[0] = true},
  }
  nodes[key] = node
  set_run(node, run)
  return node
end

-- Where the run has a boundary at `at`, the upper half keeps the key.
local function split(node, at)
  local run = run_of(node)
  local lower = new_node(sub(run, at * 8 + 1, at * 8 + 8), node.depth + at, node.key, sub(run, at * 8 + 1))
  lower.children, lower.next, lower.used = node.children, node.next, node.used
  local holders = {}
  each_holder(node, function(tenure, count) holders[#holders + 1] = {tenure, count} end)
  for _, holder in ipairs(holders) do
    if holder[2] > at then
      set_count(lower, holder[1], holder[2] - at)
      set_count(node, holder[1], at)
    end
  end
  set_run(node, sub(run, 1, at * 8))
  node.children, node.next = 1, lower.key
  return node
end

-- How many blocks the run has in common from its block `from` on with the path from its block `at` on.
-- They agree on a block only if they agree on all before it.
local function common(node, from, hashes, at)
  local most = math.min(node.length - from, #hashes / 8 - at)
  if most <= 0 then return 0 end
  local run = from + most == node.length and node.run == nil and node.last or false
  if run then
    if sub(hashes, (at + most) * 8 - 7, (at + most) * 8) == run then return most end
  end
  run = run_of(node)
  if sub(hashes, (at + most) * 8 - 7, (at + most) * 8) == sub(run, (from + most) * 8 - 7, (from + most) * 8) then
    return most
  end
  local low, high = 0, most - 1
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if sub(run, (from + middle) * 8 - 7, (from + middle) * 8) == sub(hashes, (at + middle) * 8 - 7, (at + middle) * 8) then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

-- The node on the way from `key` downwards, along splits, that has the block at this depth; false if it is gone.
local function resolve(key, depth)
  local node = load(key)
  for _ = 1, HOPS_MAX do
    if not node or depth < node.depth then return false end
    if depth < node.depth + node.length then return node end
    node = load(node.next)
  end
  return false
end

-- Nobody below, and nobody who holds the end of it: the end goes, then the node, then perhaps the one above.
local function tidy(node)
  for _ = 1, HOPS_MAX do
    if not node or node.children > 0 then return end
    local longest = 0
    each_holder(node, function(_, count) if count > longest then longest = count end end)
    if longest == node.length then return end
    if longest > 0 then
      set_run(node, sub(run_of(node), 1, longest * 8))
      return
    end
    node.gone = true
    touch(node)
    nodes[node.key] = false
    local above = node.depth > 0 and resolve(node.above, node.depth - 1)
    if above then
      above.children = above.children - 1
      if above.next == node.key then above.next = NONE end
      touch(above)
    end
    node = above
  end
end

-- Pieces are put together once, at the end: what scripts cost most is the garbage of long strings.
local function record(...)
  local count = #records
  for at = 1, select('#', ...) do records[count + at] = (select(at, ...)) end
end

local function announce(before, sequence)
  -- A log without its meta is no log of this tree, and would not take an earlier number.
  if sequence == 1 then redis.call('DEL', log) end
  local entry = ARGV[1] .. before .. pack('<I8', sequence) .. namespace .. table.concat(records)
  redis.call('HSET', meta, 'tip', ARGV[1], 'sequence', sequence)
  redis.call('XADD', log, 'MAXLEN', '~', ARGV[4], string.format('%.0f-1', sequence), 'e', entry)
  redis.call('SPUBLISH', ARGV[2], entry)
end

-- Writes what has changed, tells everybody, and gives the shard's sequence. Nothing changed: nothing is written.
local function commit()
  local stands = redis.call('HMGET', meta, 'tip', 'sequence')
  local before, sequence = stands[1] or NONE, tonumber(stands[2] or '0')
  if #order == 0 and #records == 0 then return sequence end
  sequence = sequence + 1
  local writes, removed = {}, {}
  for _, node in ipairs(order) do
    if node.gone then
      removed[#removed + 1] = 'N' .. node.key
      removed[#removed + 1] = 'R' .. node.key
      for index = 1, 2 ^ node.level - 1 do removed[#removed + 1] = 'H' .. node.key .. pack('<I2', index) end
      record('x', node.key)
    else
      local head = pack(HEAD, sequence, node.depth, node.length, node.children, node.used, node.level,
        node.last, node.next, node.above) .. node.chunks[0]
      writes[#writes + 1] = 'N' .. node.key
      writes[#writes + 1] = head
      local run = ''
      if node.rewritten then
        run = node.run
        writes[#writes + 1] = 'R' .. node.key
        writes[#writes + 1] = pack('<I8', sequence) .. run
      end
      record('n', node.key, pack('<I2', #head), head, pack('<I2', #run / 8), run)
      for index in pairs(node.dirty) do
        if index > 0 then
          local text = node.chunks[index]
          writes[#writes + 1] = 'H' .. node.key .. pack('<I2', index)
          writes[#writes + 1] = text
          record('h', node.key, pack('<I2I2', index, #text), text)
        end
      end
    end
  end
  if #removed > 0 then redis.call('HDEL', tree, unpack(removed)) end
  if #writes > 0 then redis.call('HSET', tree, unpack(writes)) end
  if #order > 0 and redis.call('HSETNX', names, namespace, ARGV[5]) == 1 then record('m', pack('<I2', #ARGV[5]), ARGV[5]) end
  announce(before, sequence)
  return sequence
end
