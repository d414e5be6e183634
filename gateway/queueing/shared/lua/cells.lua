-- The exchange with other cells, and with other shards of the same model's tenants: loads and virtual times.
--
-- policies/cell_turns.py calculates the bounds of turns; one gateway alone has none.

local WEIGHED_MAX = 16

-- Returns the sum of the weights of the tenants that wait; of more than WEIGHED_MAX, estimated from the first ones.
local function waiting_weight(queue)
  local sum, weighed = 0, 0
  for _, active in ipairs(call('ZRANGE', queue.active, 0, WEIGHED_MAX - 1)) do
    local tenant = string.sub(active, 18)
    local ticket = tickets_of(queue, tenant, 1)[1]
    local record = ticket and look(string.sub(ticket, #tenant + 19))
    if record then sum, weighed = sum + record.weight, weighed + 1 end
  end
  return weighed > 0 and sum * waiting_tenants(queue) / weighed or 0
end

-- Applies the bounds that follow from other cells' progress to a queue, for `lease` ms: TurnBounds of
-- policies/cell_turns.py.
local function keep_in_step(queue, lift, start_max, lease)
  if lift > virtual_time(queue) then call('HSET', queue.meta, 'v', text(lift)) end
  if start_max == '' then
    call('HDEL', queue.meta, 's', 'u')
  else
    call('HSET', queue.meta, 's', start_max, 'u', now + lease)
  end
  queue.virtual_time = nil
end

-- cells: sets the load that other cells, and other shards that use the same workers, have on them.
--   number of workers, workers {worker, tokens queued, streams, KV tokens}, lease in ms of the bounds,
--   bounds of each of the queues {lift, start_max or ''}; -1 in place of all of these: only reads
-- Outcome 1 {worker, tokens queued, streams, KV tokens, ...} of this cell and shard alone, {virtual time, weight that
--   waits, ...} of each of the queues
function verbs.cells(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local workers, reported = call('HKEYS', loads), {}
  local count = tonumber(next_arg(args))
  for _, worker in ipairs(workers) do reported[worker] = {0, 0, 0} end
  for _ = 1, count do
    local worker = next_arg(args)
    if not reported[worker] then workers[#workers + 1] = worker end
    reported[worker] = {tonumber(next_arg(args)), tonumber(next_arg(args)), tonumber(next_arg(args))}
  end
  read_loads(workers)
  for _, worker in ipairs(workers) do
    local load, others = known_loads[worker], reported[worker]
    local tokens, streams, kv = others[1] - load[QUEUED_ELSEWHERE], others[2] - load[STREAMS_ELSEWHERE],
      others[3] - load[KV_ELSEWHERE]
    if count >= 0 and (tokens ~= 0 or streams ~= 0 or kv ~= 0) then
      load[QUEUED_ELSEWHERE], load[STREAMS_ELSEWHERE], load[KV_ELSEWHERE] = unpack(others)
      change_load(worker, tokens, streams, kv)
    end
  end
  if count >= 0 then
    local lease = tonumber(next_arg(args))
    for _, queue in ipairs(queues) do keep_in_step(queue, tonumber(next_arg(args)), next_arg(args), lease) end
    in_step = true
    grant()
  end
  -- After the turns that were just granted.
  local own, progress = {}, {}
  for worker, load in pairs(known_loads) do
    local streams = load[STREAMS] - load[STREAMS_ELSEWHERE]
    if streams > 0 then
      local tokens, kv = load[QUEUED] - load[QUEUED_ELSEWHERE], load[KV] - load[KV_ELSEWHERE]
      own[#own + 1], own[#own + 2], own[#own + 3], own[#own + 4] = worker, tokens, streams, kv
    end
  end
  for i, queue in ipairs(queues) do
    progress[2 * i - 1], progress[2 * i] = text((virtual_time(queue))), text(waiting_weight(queue))
  end
  return reply(1, own, progress)
end
