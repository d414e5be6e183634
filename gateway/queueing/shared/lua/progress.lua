-- The first token of a request, and its end: verb progress, and the removal of requests.

local SWEEP_MS = 1000

-- When ids that have ended were last removed from `ended`, in ms.
local ended_swept = 0

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
  if memory then memory.looks[id] = nil end
  call('HDEL', places, id)
  call('ZREM', owned, id)
end

-- Removes all requests of a gateway.
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

-- progress: the first token came, or the request has ended, in any state.
--   id, 'first' or 'end', units by which what was used differs from its cost
-- Outcome 1 {loads}, 0 there is no such request.
function verbs.progress(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local id, first, change = next_arg(args), next_arg(args) == 'first', tonumber(next_arg(args))
  local record = read(id)
  if not first then
    -- Not at every end: to remember an id for longer does no harm.
    if now < ended_swept or now - ended_swept >= SWEEP_MS then
      ended_swept = now
      call('ZREMRANGEBYSCORE', ended, '-inf', now)
    end
    call('ZADD', ended, now + ENDED_MS, id)
  end
  if not record then return reply(0, {}) end
  if first then
    if record.state == 'placed' then
      change_load(record.worker, -record.tokens, 0, 0)
      record.state = 'answering'
      write(id, record)
    end
  else
    drop(id, record, change)
  end
  grant()
  return reply(1, loads_of(record.worker and {record.worker} or {}))
end
