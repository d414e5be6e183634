-- How many leading blocks of a node each tenure holds, by tier: on the GPU; on the GPU or in host memory; anywhere.
--
-- The counts are cumulative and packed into one number: all + (all - host) * 2^10 + (all - gpu) * 2^20. If all
-- blocks are on the GPU, that is the count itself. Tiers are numbered 0, 1, 2; a block in one tier counts in slower
-- ones too.

local function counts(value)
  if value < TIERS then return value, value, value end
  local all = value % TIERS
  return all - floor(value / TIERS ^ 2), all - floor(value / TIERS) % TIERS, all
end

local function packed(gpu, host, all) return all + (all - host) * TIERS + (all - gpu) * TIERS ^ 2 end

-- Returns the value for the first `at` blocks, and the value for those behind them.
local function parted(value, at)
  local gpu, host, all = counts(value)
  return packed(min(gpu, at), min(host, at), min(all, at)),
    packed(max(gpu - at, 0), max(host - at, 0), max(all - at, 0))
end

local function chunk(node, index)
  if index == 0 then return node.first end
  if not node.chunks then node.chunks = {} end
  local found = node.chunks[index]
  if found == nil then
    found = call('HGET', tree, 'H' .. node.key .. pack('<I2', index)) or ''
    node.chunks[index] = found
  end
  return found
end

local function set_chunk(node, index, text)
  if index == 0 then
    node.first = text
  else
    node.chunks = node.chunks or {}
    node.dirty = node.dirty or {}
    node.chunks[index], node.dirty[index] = text, true
  end
  touch(node)
end

-- Returns the holder's value, the index of its chunk, and its position in the chunk (nil: it is no holder).
local function find(node, tenure)
  local index = node.level > 0 and tenure % 2 ^ node.level or 0
  local text = chunk(node, index)
  if text == '' then return 0, index, nil end
  local wanted, from = pack('<I4', tenure), 1
  while true do
    local at = find_(text, wanted, from, true)
    if not at then return 0, index, nil end
    if at % 8 == 1 then return unpack_('<I4', text, at + 4), index, at end
    from = at + 1
  end
end

local function each_holder(node, visit)
  for index = 0, 2 ^ node.level - 1 do
    local text = chunk(node, index)
    for from = 1, #text, 8 do
      local tenure, value = unpack_('<I4I4', text, from)
      visit(tenure, value)
    end
  end
end

-- Doubles the number of chunks and moves each holder to its chunk.
local function spread(node)
  local level, parts = node.level + 1, {}
  each_holder(node, function(tenure, value)
    local to = tenure % 2 ^ level
    parts[to] = (parts[to] or '') .. pack('<I4I4', tenure, value)
  end)
  node.level = level
  for index = 0, 2 ^ level - 1 do set_chunk(node, index, parts[index] or '') end
end

local function put(node, tenure, value, index, at)
  local text = chunk(node, index)
  local entry = value > 0 and pack('<I4I4', tenure, value) or ''
  if at then
    set_chunk(node, index, sub(text, 1, at - 1) .. entry .. sub(text, at + 8))
  elseif value == 0 then
    return
  elseif #text < HOLDERS_MAX * 8 or node.level == LEVEL_MAX then
    set_chunk(node, index, text .. entry)
  else
    spread(node)
    index = tenure % 2 ^ node.level
    put(node, tenure, value, index, nil)
  end
end

-- Returns how many leading blocks the tenure has in this tier or a faster one.
local function held(node, tenure, tier)
  local gpu, host, all = counts((find(node, tenure)))
  return tier == 0 and gpu or tier == 1 and host or all
end

-- Raises the tenure's count to at least `count` in this tier, and so in slower ones.
local function raise_held(node, tenure, tier, count)
  local value, index, at = find(node, tenure)
  if value < TIERS and (tier == 0 or value >= count) then
    if value < count then put(node, tenure, count, index, at) end
    return
  end
  local gpu, host, all = counts(value)
  if tier == 0 then gpu = max(gpu, count) end
  if tier <= 1 then host = max(host, count) end
  local after = packed(gpu, host, max(all, count))
  if after ~= value then put(node, tenure, after, index, at) end
end

-- Lowers the tenure's count to at most `count` in this tier and faster ones; returns whether it changed.
local function lower_held(node, tenure, tier, count)
  local value, index, at = find(node, tenure)
  local gpu, host, all = counts(value)
  gpu = min(gpu, count)
  if tier >= 1 then host = min(host, count) end
  if tier == 2 then all = min(all, count) end
  local after = packed(gpu, host, all)
  if after ~= value then put(node, tenure, after, index, at) end
  return after ~= value
end

-- Splits a node's run after `at` blocks; the upper half keeps the key.
local function split(node, at)
  local run = run_of(node)
  local below = new_node(sub(run, at * 8 + 1, at * 8 + 8), node.depth + at, node.key, sub(run, at * 8 + 1))
  below.children, below.next, below.used = node.children, node.next, node.used
  local moved = {}
  each_holder(node, function(tenure, value)
    if value % TIERS > at then moved[#moved + 1] = {tenure, value} end
  end)
  for _, holder in ipairs(moved) do
    local upper, lower_half = parted(holder[2], at)
    put(below, holder[1], lower_half, select(2, find(below, holder[1])))
    put(node, holder[1], upper, select(2, find(node, holder[1])))
  end
  set_run(node, at, '')
  node.children, node.next = 1, below.key
end

-- Without children, removes the end of the run that no tenure holds, then an empty node, then perhaps its parent.
local function tidy(node)
  for _ = 1, HOPS_MAX do
    if not node or node.children > 0 then return end
    local longest = 0
    each_holder(node, function(_, value) longest = max(longest, value % TIERS) end)
    if longest == node.length then return end
    if longest > 0 then
      set_run(node, longest, '')
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
