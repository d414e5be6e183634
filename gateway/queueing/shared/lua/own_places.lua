-- Places that a gateway gave by itself, without a call for each (gateway/queueing/shared/own_places.py): verb report.
--
-- They are stored as one record for each gateway and worker, under an id that begins as those of the gateway's requests
-- do, so that they are freed with these when it leaves or dies. Its fields: worker; tokens, streams and kv, in all.

-- Charges a tenant with turns that its gateway gave by itself, and with what was used beyond the cost of earlier ones.
--   cost, change: units over weight
local function charge(queue, tenant, cost, change)
  local record = {tenant = tenant, weight = 1, cost = cost}
  if cost > 0 and waiting_tenants(queue) == 0 then
    give_turn(queue, record, math.max((virtual_time(queue)), finish_of(queue, tenant)))
    cost = 0
  end
  -- While requests wait, the virtual time follows those that get turns in their order.
  if cost + change ~= 0 then correct(queue, record, cost + change) end
end

-- report: sets what the gateway holds by places that it gave itself, and charges tenants for them.
--   id of this call, number of workers, workers {worker, tokens queued, streams, KV tokens} of these places as of now,
--   number of tenants, tenants {queue, tenant, cost over weight of turns, change over weight of earlier costs}, which
--   are charged once for each id
-- Outcome 1 {loads, {tenants that wait, of each of the queues}, {virtual time, finish tag of each of the tenants}}
function verbs.report(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local call_id, workers = next_arg(args), {}
  for i = 1, tonumber(next_arg(args)) do
    local worker = next_arg(args)
    local id = args[1] .. ':at ' .. worker
    local before = read(id) or {tokens = 0, streams = 0, kv = 0}
    local record = {state = 'placed', queue = '', worker = worker, tokens = tonumber(next_arg(args)),
      streams = tonumber(next_arg(args)), kv = tonumber(next_arg(args))}
    change_load(worker, record.tokens - before.tokens, record.streams - before.streams, record.kv - before.kv)
    if record.streams > 0 then
      call('ZADD', owned, 0, id)
      write(id, record)
    else
      call('ZREM', owned, id)
      call('HDEL', places, id)
    end
    workers[i] = worker
  end
  local count, tags, waiting = tonumber(next_arg(args)), {}, {}
  local again = count > 0 and call('ZSCORE', ended, call_id)
  if count > 0 then remember_ended(call_id) end
  for i = 1, count do
    local queue, tenant = queues[next_arg(args)], next_arg(args)
    local cost, change = tonumber(next_arg(args)), tonumber(next_arg(args))
    if not again then charge(queue, tenant, cost, change) end
    tags[2 * i - 1], tags[2 * i] = text((virtual_time(queue))), text(finish_of(queue, tenant))
  end
  grant()
  for i, queue in ipairs(queues) do waiting[i] = waiting_tenants(queue) end
  return reply(1, loads_of(workers), waiting, tags)
end
