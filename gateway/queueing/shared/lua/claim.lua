-- A turn that was granted: its gateway claims it, for the request that it was granted to or for another one of the same
-- tenant (verb claim), or it expires (verb expire).

-- Returns the waiting ticket, of the same tenant and queue, that its gateway wants to send in place of a granted one.
-- Nil if none is named, or it no longer waits.
local function ticket_to_send_instead(granted, other_id)
  local other = other_id ~= '' and read(other_id)
  if other and other.state == 'waiting' and other.tenant == granted.tenant and other.queue == granted.queue then
    return other
  end
end

-- Takes a waiting ticket out of the queue, and puts the granted one back into it: the tenant's turn is charged with the
-- cost of the ticket that goes.
local function exchange_tickets(queue, granted_id, granted, other_id, other)
  dequeue(queue, other_id, other)
  correct(queue, granted, other.cost - granted.cost)
  granted.state, granted.routes = 'waiting', {{granted.worker, granted.tokens, 0, 0, 0}}
  granted.worker, granted.tokens = nil, nil
  write(granted_id, granted)
  enqueue(queue, granted_id, granted)
end

-- claim: a gateway takes a turn, for the ticket that it was granted to or for another one of that tenant.
--   id, id of the other ticket or '', number of routes, routes (of the ticket that is to go, as they are now)
-- Outcome 1 {id that goes, worker, tokens, loads}, -1 the turn no longer exists.
function verbs.claim(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local granted_id, other_id = next_arg(args), next_arg(args)
  local routes, granted = routes_of(args), read(granted_id)
  if granted and granted.state == 'placed' then  -- A repeated claim.
    return reply(1, granted_id, granted.worker, granted.tokens, loads_of({granted.worker}))
  end
  if not granted or granted.state ~= 'granted' then return reply(-1) end
  local queue, other = queues[granted.queue], ticket_to_send_instead(granted, other_id)

  -- Rank the workers again, as if the turn had not been granted. If another ticket is named, the routes are of that one;
  -- where it no longer waits, they do not apply to the granted one, which keeps its worker.
  remove_load(granted)
  local route
  if other or other_id == '' then
    local ticket = other or granted
    local crowds = terms.contended and #tickets_of(queue, granted.tenant, 1) > 0
    route = best_route{routes = routes, closed = {}, hold = terms.hold, is_narrow = narrow_applies(queue, crowds),
      background = queue.background, target = ticket.target, work_share = ticket.work_share}
  end

  -- Choose the ticket that goes.
  local id, record = granted_id, granted
  if other and route then
    exchange_tickets(queue, granted_id, granted, other_id, other)
    id, record = other_id, other
  end

  -- Place it; without a route, at the worker that the turn was granted for.
  if route then record.worker, record.tokens = route[WORKER], route[UNCACHED] end
  record.state, record.routes = 'placed', nil
  add_load(record)
  write(id, record)
  call('ZREM', grants, granted_id)
  grant()
  return reply(1, id, record.worker, record.tokens, loads_of({record.worker}))
end

-- expire: removes tickets whose turn was not claimed with their load and cost, and grants turns to others.
--   ms by which the clock is ahead: 0
function verbs.expire(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local late = call('ZRANGEBYSCORE', grants, '-inf', now + tonumber(next_arg(args)), 'LIMIT', 0, SWEPT_MAX)
  for _, id in ipairs(late) do
    local record = read(id)
    if record then drop(id, record, 0) end
    call('ZREM', grants, id)
  end
  grant()
  return reply(1)
end
