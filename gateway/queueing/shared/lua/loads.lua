-- The load of each worker: prompt tokens queued, streams and KV tokens, of all gateways together.
--
-- Work of other cells is counted apart. The shards among which the tenants of one model are divided report to each
-- other as cells do, but within milliseconds, and their work counts in full.

local REMEMBERED_LOADS_MAX = 16384

-- A load is an array, as it is packed. Its entries: prompt tokens queued, streams, KV tokens; of these, what is of
-- other cells.
local QUEUED, STREAMS, KV, QUEUED_ELSEWHERE, STREAMS_ELSEWHERE, KV_ELSEWHERE = 1, 2, 3, 4, 5, 6

-- The loads that were last read or written, by the key `loads` and worker; and how many.
local last_loads, last_loads_count = {}, 0

local LOAD, LOAD_WITH_CELLS = '<i8i8i8', '<i8i8i8i8i8i8'

local function load_of(packed)
  if not packed then return {0, 0, 0, 0, 0, 0} end
  if #packed > 24 then return {struct.unpack(LOAD_WITH_CELLS, packed)} end
  local tokens, streams, kv = struct.unpack(LOAD, packed)
  return {tokens, streams, kv, 0, 0, 0}
end

-- Keeps a load for later calls.
local function remember_load(worker, load)
  if last_loads_count >= REMEMBERED_LOADS_MAX then last_loads, last_loads_count = {}, 0 end
  local of = last_loads[loads]
  if not of then
    of = {}
    last_loads[loads] = of
  end
  if not of[worker] then last_loads_count = last_loads_count + 1 end
  of[worker] = load
end

-- Reads the loads of the workers that this call has not read.
local function read_loads(workers)
  local missing = {}
  for _, worker in ipairs(workers) do
    if not known_loads[worker] then missing[#missing + 1] = worker end
  end
  if #missing == 0 then return end
  for i, packed in ipairs(call('HMGET', loads, unpack(missing))) do
    known_loads[missing[i]] = load_of(packed)
    remember_load(missing[i], known_loads[missing[i]])
  end
end

local function change_load(worker, tokens, streams, kv)
  read_loads({worker})
  local load = known_loads[worker]
  load[QUEUED], load[STREAMS], load[KV] = load[QUEUED] + tokens, load[STREAMS] + streams, load[KV] + kv
  if seen[worker] then seen[worker] = seen[worker] + tokens end
  if load[STREAMS] == 0 then
    known_loads[worker] = {0, 0, 0, 0, 0, 0}
    remember_load(worker, known_loads[worker])
    call('HDEL', loads, worker)
  elseif load[STREAMS_ELSEWHERE] > 0 then
    call('HSET', loads, worker, struct.pack(LOAD_WITH_CELLS, unpack(load, 1, 6)))
  else
    call('HSET', loads, worker, struct.pack(LOAD, unpack(load, 1, 3)))
  end
end

local function add_load(record) change_load(record.worker, record.tokens, 1, record.kv) end

-- `streams`: of a record of several requests (see own_places.lua).
local function remove_load(record)
  local tokens = record.state == 'answering' and 0 or record.tokens
  change_load(record.worker, -tokens, -(record.streams or 1), -record.kv)
end

-- Returns {worker, tokens queued, streams, KV tokens, ...} of these workers.
local function loads_of(workers)
  read_loads(workers)
  local found = {}
  for i, worker in ipairs(workers) do
    local load = known_loads[worker]
    found[4 * i - 3], found[4 * i - 2], found[4 * i - 1], found[4 * i] = worker, unpack(load, 1, 3)
  end
  return found
end
