-- The gateways that use the queue: they join, renew their lease, and leave (verbs join and beat). What a gateway with
-- an expired lease held is freed (verb reap) by `drop_all_of` of removal.lua, at most SWEPT_MAX times 256 requests: far more
-- than a gateway can hold.

-- beat: renews the gateway's lease for this long; 0: the gateway leaves.
--   lease in ms
-- Outcome 1 {{gateways whose lease is over}, {worker, tokens queued, streams, KV tokens, ...}}
function verbs.beat(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local lease = tonumber(next_arg(args))
  if lease == 0 then
    drop_all_of(args[1])
    call('ZREM', gateways, args[1])
    call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'gateways', '')
    grant()
    return reply(1, {}, {})
  end
  call('ZADD', gateways, now + lease, args[1])
  return reply(1, call('ZRANGEBYSCORE', gateways, '-inf', now, 'LIMIT', 0, 64), loads_of(call('HKEYS', loads)))
end

-- reap: frees what a gateway holds whose lease is over.
--   the gateway, ms by which its lease is taken to end sooner: 0 but in tests
-- Outcome 0: it has a lease.
function verbs.reap(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local dead, ahead = next_arg(args), tonumber(next_arg(args))
  local lease = call('ZSCORE', gateways, dead)
  if lease and tonumber(lease) > now + ahead then return reply(0) end
  drop_all_of(dead)
  if call('ZREM', gateways, dead) == 1 then
    call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'gateways', '')
  end
  grant()
  return reply(1)
end

-- join: a gateway begins, or begins again. It holds these places, and nothing else.
--   lease in ms, id of this call, 1 if it is the first part of several, number of places,
--   places {id, queue, tenant, weight, cost, KV tokens, worker, tokens (0: answering)},
--   number of services, services {queue, tenant, units over weight}: work done while Redis was away, added once
function verbs.join(keys, args)
  local new = not begin(keys, args)
  local lease, id, first = tonumber(next_arg(args)), next_arg(args), next_arg(args) == '1'
  call('ZADD', gateways, now + lease, args[1])
  if first then drop_all_of(args[1]) end
  for _ = 1, tonumber(next_arg(args)) do
    local place = next_arg(args)
    local record = {queue = next_arg(args), tenant = next_arg(args), weight = tonumber(next_arg(args)),
      cost = tonumber(next_arg(args)), kv = tonumber(next_arg(args)), worker = next_arg(args),
      tokens = tonumber(next_arg(args))}
    record.state = record.tokens == 0 and 'answering' or 'placed'
    if not call('ZSCORE', ended, place) and not read(place) then
      add_load(record)
      call('ZADD', owned, 0, place)
      write(place, record)
    end
  end
  local again = call('ZSCORE', ended, id)
  remember_ended(id)
  for _ = 1, tonumber(next_arg(args)) do
    local queue, tenant, units = queues[next_arg(args)], next_arg(args), tonumber(next_arg(args))
    if queue and not again then correct(queue, {tenant = tenant, weight = 1}, units) end
  end
  if new then call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'gateways', '') end
  grant()
  return reply(1)
end
