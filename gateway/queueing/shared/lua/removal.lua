-- The removal of requests from the queue and from the loads of workers: of one, or of all that a gateway has.

local SWEEP_MS = 1000

-- When ids that have ended were last removed from `ended`, in ms.
local ended_swept = 0

-- Remembers an id that has ended, so that a call which comes late does not bring it back. Older ones are not removed
-- each time: to remember an id for longer does no harm.
local function remember_ended(id)
  if now < ended_swept or now - ended_swept >= SWEEP_MS then
    ended_swept = now
    call('ZREMRANGEBYSCORE', ended, '-inf', now)
  end
  call('ZADD', ended, now + ENDED_MS, id)
end

-- Removes a request in any state: waiting, granted, placed or answering. `change`: of its tenant's charge.
local function drop(id, record, change)
  local queue = queues[record.queue]
  if record.state == 'waiting' then
    if queue then dequeue(queue, id, record) end
  else
    remove_load(record)
    if record.state == 'granted' then
      call('ZREM', grants, id)
      change = -record.cost
    end
    if queue and change ~= 0 then correct(queue, record, change) end
  end
  local memory = queue and remembered[queue.meta]
  if memory then memory.vain_looks[id] = nil end
  call('HDEL', places, id)
  call('ZREM', owned, id)
end

-- Removes the requests of a gateway: at most SWEPT_MAX times 256 in one call.
local function drop_all_of(gateway)
  for _ = 1, SWEPT_MAX do
    local ids = call('ZRANGEBYLEX', owned, '[' .. gateway .. ':', '(' .. gateway .. ';', 'LIMIT', 0, 256)
    for _, id in ipairs(ids) do
      local record = read(id)
      if record then drop(id, record, 0) else call('ZREM', owned, id) end
    end
    if #ids < 256 then return end
  end
end
