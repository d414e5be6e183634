-- A request asks for a worker: verb admit, which lets it wait for its turn, and verb spare, which takes no turn.

-- admit: places a request if a worker has room and no request waits, else adds it to the first queue of the call. With
--   a batch queue come the queues that go before it.
--   id, tenant, weight, cost, KV tokens, TTFT target in seconds, its tenant's share of the recent work, number of
--   routes, routes
-- Outcome 1 {worker, tokens, loads, virtual time, finish tag, tenants that wait in its queue}, 0 it waits {'', 0, and
--   the others}, -1 it has ended already.
-- If the request waits already, these routes replace those before. If it has its turn, it is placed.
function verbs.admit(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local id, queue = next_arg(args), queues[1]
  if call('ZSCORE', ended, id) then return reply(-1) end
  local record = {queue = queue.name, tenant = next_arg(args), weight = tonumber(next_arg(args)),
    cost = tonumber(next_arg(args)), kv = tonumber(next_arg(args)), target = tonumber(next_arg(args)),
    work_share = tonumber(next_arg(args))}
  local routes = routes_of(args)
  local known = read(id)
  if known and known.state == 'waiting' then
    known.routes = routes
    write(id, known)
    grant(id)
  elseif not known then
    call('ZADD', owned, 0, id)
    local unblocked = waiting_tenants(queue) == 0 and not requests_wait_before(queue)
    local start = unblocked and math.max((virtual_time(queue)), finish_of(queue, record.tenant))
    local route = unblocked and best_route{routes = routes, closed = {}, hold = terms.hold,
      is_narrow = narrow_applies(queue, false), background = queue.background, target = record.target,
      work_share = record.work_share, ahead_of_cells = is_ahead(queue, start)}
    if route then
      give_turn(queue, record, start)
      record.state, record.worker, record.tokens = 'placed', route[WORKER], route[UNCACHED]
      add_load(record)
      write(id, record)
    else
      record.state, record.routes, record.number = 'waiting', routes, call('HINCRBY', queue.meta, 'n', 1)
      write(id, record)
      enqueue(queue, id, record)
      grant(id)
    end
  end
  -- As it was placed just now, or as it is stored.
  if record.state ~= 'placed' then record = read(id) end
  if record.state == 'granted' then
    -- Its gateway asks before it was notified of the turn: it need not claim it.
    record.state = 'placed'
    write(id, record)
    call('ZREM', grants, id)
  end
  local waits = record.state == 'waiting'
  return reply(waits and 0 or 1, waits and '' or record.worker, record.tokens or 0,
    loads_of(workers_of(routes)), text((virtual_time(queue))), text(finish_of(queue, record.tenant)),
    waiting_tenants(queue))
end

-- spare: places a request only if none waits in any of these queues, batch work apart, and a worker has room.
--   id, tenant, weight, cost, KV tokens, TTFT target in seconds, its tenant's share of the recent work, number of
--   routes, routes
-- Outcome 1 {worker, tokens, loads}, 0 there is no room {'', 0, loads}, -1 it has ended already.
function verbs.spare(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local id = next_arg(args)
  if call('ZSCORE', ended, id) then return reply(-1) end
  local record = {queue = queues[1].name, tenant = next_arg(args), weight = tonumber(next_arg(args)),
    cost = tonumber(next_arg(args)), kv = tonumber(next_arg(args)), target = tonumber(next_arg(args)),
    work_share = tonumber(next_arg(args))}
  local routes, known = routes_of(args), read(id)
  if not known then
    local unblocked = true
    for _, queue in ipairs(queues) do
      unblocked = unblocked and (queue.background or waiting_tenants(queue) == 0)
    end
    local route = unblocked and best_route{routes = routes, closed = {}, is_narrow = false,
      background = queues[1].background, target = record.target, work_share = record.work_share}
    if not route then return reply(0, '', 0, loads_of(workers_of(routes))) end
    record.state, record.worker, record.tokens = 'placed', route[WORKER], route[UNCACHED]
    add_load(record)
    call('ZADD', owned, 0, id)
    write(id, record)
    known = record
  end
  return reply(1, known.worker, known.tokens, loads_of(workers_of(routes)))
end
