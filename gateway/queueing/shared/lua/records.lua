-- The records of requests, as they are stored in the hash `places`.
--
-- state  waiting    waits for a turn: has `routes` and `number`
--        granted    has a turn until its deadline in grants
--        placed     is counted in the load of its worker: has `worker` and `tokens`
--        answering  the same, after its prefill

local UNPACKED_MAX = 256

-- Records that `look` has unpacked, by their packed form, from call to call; and how many.
local unpacked, unpacked_count = {}, 0

local function read(id)
  local found = call('HGET', places, id)
  return found and cmsgpack.unpack(found)
end

-- Returns a record that must not be changed. The request at the head of the queue is read by call after call: to unpack
-- it each time would cost more than the rest of a look.
local function look(id)
  local found = call('HGET', places, id)
  if found and not unpacked[found] then
    if unpacked_count == UNPACKED_MAX then unpacked, unpacked_count = {}, 0 end
    unpacked[found], unpacked_count = cmsgpack.unpack(found), unpacked_count + 1
  end
  return found and unpacked[found]
end

-- Writes a record, and forgets what searches have found for it, since that was of the record before.
local function write(id, record)
  local queue = queues[record.queue]
  local memory = queue and remembered[queue.meta]
  if memory then memory.vain_looks[id] = nil end
  call('HSET', places, id, cmsgpack.pack(record))
end
