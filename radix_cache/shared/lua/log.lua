-- Every change of a shard gets the next sequence number, and is written to the shard's log and published on its
-- channel together with the tip of the change before, so that a reader notices a missed change. ../log_records.py
-- describes the format of an entry.
--
-- The log is bounded in entries, and in bytes by halves: when the newer half is full, the older one is removed.
--
--    | older half | newer half |        half: number of the first change of the newer half, bytes: its size
--
-- A path of 131,072 tokens is an entry of 64 KiB, so that the entries alone would be no bound: 48 shards with 4,096 of
-- them would have 12 GiB, and not 96 MiB. A reader that needs more of the log than there is reads the shard.
local TRIM_EVERY = 64
local LOG_BYTES_MAX = 2 * 2 ^ 20

-- Collects pieces of the entry, which are joined once, at the end. The first piece is the entry's head.
local function record(kind, a, b, c, d, e)
  local at = #records
  records[at + 1], records[at + 2], records[at + 3], records[at + 4] = kind, a, b, c
  if d then records[at + 5], records[at + 6] = d, e end
end

local function announce(args, before, sequence, half, bytes)
  -- A log without its meta key belongs to an earlier tree, and would refuse smaller numbers.
  if sequence == 1 then call('DEL', log) end
  records[1] = pack('<c8c8I8c8', args[1], before, sequence, args[3])
  local entry = table.concat(records)
  -- As text: a number would be written with all its digits after the decimal point.
  local number = string.format('%.0f', sequence)
  local id = number .. '-1'
  bytes = bytes + #entry
  local full = bytes >= LOG_BYTES_MAX / 2
  if full then call('XTRIM', log, 'MINID', half) end
  call('HSET', meta, 'tip', args[1], 'sequence', number,
    'half', full and number or half, 'bytes', full and #entry or bytes)
  if sequence % TRIM_EVERY == 0 then
    call('XADD', log, 'MAXLEN', '~', args[4], id, 'e', entry)
  else
    call('XADD', log, id, 'e', entry)
  end
  call('SPUBLISH', args[2], entry)
end

local function write_nodes(sequence)
  local writes, removed = {}, {}
  for _, node in ipairs(order) do
    local key = node.key
    if node.gone then
      removed[#removed + 1] = 'N' .. key
      removed[#removed + 1] = 'R' .. key
      for index = 1, 2 ^ node.level - 1 do removed[#removed + 1] = 'H' .. key .. pack('<I2', index) end
      record('x', key)
    else
      local head = pack(HEAD, sequence, node.depth, node.length, node.children, node.used, node.level,
        node.last, node.next, node.above) .. node.first
      local at = #writes
      writes[at + 1], writes[at + 2] = 'N' .. key, head
      local grown = node.grown or ''
      if node.grown then writes[at + 3], writes[at + 4] = 'R' .. key, node.run end
      record('n', key, pack('<I2', #head), head, pack('<I2I2', node.kept, #grown / 8), grown)
      if node.dirty then
        for index in pairs(node.dirty) do
          local text = node.chunks[index]
          writes[#writes + 1] = 'H' .. key .. pack('<I2', index)
          writes[#writes + 1] = text
          record('h', key, pack('<I2I2', index, #text), text)
        end
      end
    end
  end
  if #removed > 0 then call('HDEL', tree, unpack(removed)) end
  if #writes > 0 then call('HSET', tree, unpack(writes)) end
  return #removed > 0
end

-- Writes and publishes the changes, and returns the shard's sequence number. Without changes nothing is written.
local function commit(args)
  local stands = call('HMGET', meta, 'tip', 'sequence', 'half', 'bytes')
  local before, sequence = stands[1] or NONE, tonumber(stands[2] or '0')
  if #order == 0 and #records == 1 then return sequence end
  sequence = sequence + 1
  local rooted = false
  for _, node in ipairs(order) do rooted = rooted or (node.depth == 0 and node.kept == 0) end
  if #order > 0 and write_nodes(sequence) and call('EXISTS', tree) == 0 then
    if call('HDEL', names, args[3]) == 1 then record('e') end
  elseif rooted and call('HSETNX', names, args[3], args[5]) == 1 then
    record('m', pack('<I2', #args[5]), args[5])
  end
  announce(args, before, sequence, stands[3] or '0', tonumber(stands[4] or '0'))
  return sequence
end
