-- One queue per model, and the load of every worker, for all gateways: whose turn it is, and where there is room.
--
--   admit --- room, and nobody waits -----------------------> placed --first--> answering --end--> gone
--     +--> waiting --turn: load is taken, its owner told--> granted --claim--^
--             ^                                                |
--             +--- the owner has asked anew <--- 250 ms over --+
--
-- A queue whose name ends in "#batch" gives turns only while nobody waits in the others that a call names.
-- Turns are given as policies/queueing/sfq.py says, room as policies/admission says; a property test holds this
-- file to them. Who stands first waits until it has room where it is worth going: smaller ones do not slip past it,
-- but others may go to workers that nobody before them waits for.
--
-- KEYS  1 gateways    sorted set: gateway -> end of its lease in ms
--       2 loads       hash: worker -> tokens queued, streams, KV tokens, packed
--       3 places      hash: id -> record          4 owned    sorted set of ids, by name: "gateway:number"
--       5 grants      sorted set: id -> ms by which it has to be claimed
--       6 ended       sorted set: id -> ms until which it is remembered
--       7 turns       stream: what was granted to whom; that gateways came or went
--       then for every queue
--       1 meta        hash: v, the virtual time; n, the last number; g, when it gave a turn beside others
--       2 active      sorted set: "number tenant" -> start tag, of tenants that wait; number: of its first ticket
--       3 finish      sorted set: tenant -> finish tag
--       4 tickets     sorted set, by name: "tenant number id"
-- ARGV  1 gateway  2 window in tokens  3 hold, see policies/admission; '': any worker with room will do
--       4 number of queues, their names; then what the verb says
-- Gives {outcome, ms to the next deadline or -1, gateways, ...}; outcome -2: the gateway has no lease, and joins.
--
-- Every verb may be repeated, and comes to the same. Loops are bounded by the constants below.
local verbs = {}
local CLAIM_MS, ENDED_MS = 250, 10000
local GRANTS_MAX, SWEPT_MAX, FINISH_MAX, TURNS_MAX = 8, 512, 10000, 4096
local HOLD_MS, PASSED_MAX, PASSED_OF_FLOW_MAX, UNPACKED_MAX = 10, 8, 4, 256

-- What `look` keeps from call to call: records by what they are packed as, and how many.
local unpacked, unpacked_count = {}, 0

-- Set anew by every call; redis.call is not there yet when a library is loaded.
local call, now, gateways, loads, places, owned, grants, ended, turns, window, hold, queues, at, more, queued

local function open(keys, args)
  call = redis.call
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  gateways, loads, places, owned, grants, ended, turns = unpack(keys, 1, 7)
  window, hold, queues, more, queued = tonumber(args[2]), tonumber(args[3]), {}, false, {}
  local count = tonumber(args[4])
  for i = 1, count do
    local k = 7 + (i - 1) * 4
    local queue = {name = args[4 + i], meta = keys[k + 1], active = keys[k + 2], finish = keys[k + 3],
      tickets = keys[k + 4], background = string.sub(args[4 + i], -6) == '#batch'}
    queues[i], queues[queue.name] = queue, queue
  end
  at = 5 + count
  return call('ZSCORE', gateways, args[1])
end

local function text(number) return string.format('%.17g', number) end

local function answer(outcome, ...)
  local first = call('ZRANGE', grants, 0, 0, 'WITHSCORES')
  local due = more and 0 or first[2] and math.max(0, tonumber(first[2]) - now) or -1
  return {outcome, due, call('ZCARD', gateways), ...}
end

-- Records.

local function read(id)
  local found = call('HGET', places, id)
  return found and cmsgpack.unpack(found)
end

-- The same, not to be changed. Who stands first is looked at by verb after verb: to unpack it each time would cost more
-- than all else of a look.
local function look(id)
  local found = call('HGET', places, id)
  if found and not unpacked[found] then
    if unpacked_count == UNPACKED_MAX then unpacked, unpacked_count = {}, 0 end
    unpacked[found], unpacked_count = cmsgpack.unpack(found), unpacked_count + 1
  end
  return found and unpacked[found]
end

local function write(id, record) call('HSET', places, id, cmsgpack.pack(record)) end

local LOAD = '<i8i8i8'

local function load_of(packed)
  if not packed then return 0, 0, 0 end
  local tokens, streams, kv = struct.unpack(LOAD, packed)
  return tokens, streams, kv
end

local function load_changes(worker, tokens, streams, kv)
  local tokens_now, streams_now, kv_now = load_of(call('HGET', loads, worker))
  if streams_now + streams == 0 then
    queued[worker] = 0
    call('HDEL', loads, worker)
  else
    queued[worker] = tokens_now + tokens
    call('HSET', loads, worker, struct.pack(LOAD, tokens_now + tokens, streams_now + streams, kv_now + kv))
  end
end

local function take(record) load_changes(record.worker, record.tokens, 1, record.kv) end

local function free(record)
  load_changes(record.worker, record.state == 'answering' and 0 or -record.tokens, -1, -record.kv)
end

local function packed_loads(workers)
  return #workers > 0 and call('HMGET', loads, unpack(workers)) or {}
end

local function workers_of(routes)
  local workers = {}
  for i, route in ipairs(routes) do workers[i] = route[1] end
  return workers
end

-- So that `queued` has the workers of these routes; each is read once in a call.
local function read_queued(routes)
  for _, route in ipairs(routes) do
    if not queued[route[1]] then
      local workers = workers_of(routes)
      for i, packed in ipairs(packed_loads(workers)) do queued[workers[i]] = load_of(packed) end
      return
    end
  end
end

-- The cheapest route that is worth going and has room now, at a worker that is not in `closed`; those that it waits
-- for are added. `slack`: as hold. Routes are {worker, uncached tokens, fixed ms, ms per queued token}.
local function best(routes, closed, slack)
  read_queued(routes)
  local costs, least, found = {}, math.huge, nil
  for i, route in ipairs(routes) do
    local ahead = queued[route[1]]
    local cost, room = route[3] + route[4] * ahead, ahead == 0 or ahead + route[2] <= window
    if cost < least then least = cost end
    if room and (not found or cost < costs[found]) and not closed[route[1]] then found = i end
    costs[i] = cost
  end
  local most = slack and least + math.max(math.abs(least) * slack, HOLD_MS) or math.huge
  if found and costs[found] <= most then return routes[found] end
  for i, route in ipairs(routes) do
    if costs[i] <= most then closed[route[1]] = true end
  end
end

-- Queues.

local function ticket_of(id, record) return record.tenant .. '\0' .. string.format('%016d', record.number) .. '\0' .. id end

-- A tenant's first tickets, so many of them, in their order.
local function tickets_of(queue, tenant, count)
  return call('ZRANGEBYLEX', queue.tickets, '[' .. tenant .. '\0', '(' .. tenant .. '\1', 'LIMIT', 0, count)
end

local function member(ticket, tenant) return ticket and string.sub(ticket, #tenant + 2, #tenant + 17) .. '\0' .. tenant end

local function passed(queue) return tonumber(call('HGET', queue.meta, 'v') or '0') end

local function finish_of(queue, tenant) return tonumber(call('ZSCORE', queue.finish, tenant) or passed(queue)) end

local function finish_at(queue, tenant, tag)
  if call('ZADD', queue.finish, text(tag), tenant) == 1 and call('ZCARD', queue.finish) > FINISH_MAX then
    call('ZREMRANGEBYRANK', queue.finish, 0, 99)
  end
end

-- A tenant's tickets or its tag change in `how`; its place among the active ones follows.
local function with_tenant(queue, tenant, how)
  local before = tickets_of(queue, tenant, 1)[1]
  local start = before and tonumber(call('ZSCORE', queue.active, member(before, tenant)))
  local tag = how(start)
  local after = tickets_of(queue, tenant, 1)[1]
  if before and before ~= after then call('ZREM', queue.active, member(before, tenant)) end
  if after then call('ZADD', queue.active, text(tag), member(after, tenant)) end
end

local function enqueue(queue, id, record)
  with_tenant(queue, record.tenant, function(start)
    call('ZADD', queue.tickets, 0, ticket_of(id, record))
    if start then return start end
    local tag = math.max(passed(queue), finish_of(queue, record.tenant))
    finish_at(queue, record.tenant, tag)
    return tag
  end)
end

local function dequeue(queue, id, record)
  with_tenant(queue, record.tenant, function(start)
    call('ZREM', queue.tickets, ticket_of(id, record))
    return start
  end)
end

-- What a tenant is charged with changes; so does its next start.
local function charge(queue, record, cost)
  with_tenant(queue, record.tenant, function(start)
    local tag = (start or finish_of(queue, record.tenant)) + cost / record.weight
    finish_at(queue, record.tenant, tag)
    return start and tag
  end)
end

local function give_turn(queue, record, start)
  call('HSET', queue.meta, 'v', text(math.max(passed(queue), start)))
  finish_at(queue, record.tenant, start + record.cost / record.weight)
end

-- Who goes first of those that are not passed: the ticket of the tenant with the least start, its record and that
-- start; what has no record is dropped. `round.behind`: of so many tenants that stand first nobody is left to look at.
-- They remain first when turns are given, since whoever gets one moves back.
local function head(queue, round)
  for _ = 1, SWEPT_MAX do
    if not round.tenant then
      local found = call('ZRANGE', queue.active, round.behind, round.behind, 'WITHSCORES')
      if not found[1] then return nil end
      round.active, round.tenant, round.start = found[1], string.sub(found[1], 18), tonumber(found[2])
      round.tickets = tickets_of(queue, round.tenant, PASSED_OF_FLOW_MAX)
    end
    local tenant, skipped = round.tenant, round.passed[round.tenant] or 0
    local ticket = round.tickets[skipped + 1]
    local id = ticket and string.sub(ticket, #tenant + 19)
    local record = id and look(id)
    if record and record.state == 'waiting' then return id, record, round.start end
    if ticket then
      with_tenant(queue, tenant, function(start)
        call('ZREM', queue.tickets, ticket)
        return start
      end)
    elseif skipped > 0 then
      round.behind = round.behind + 1
    else
      call('ZREM', queue.active, round.active)
    end
    round.tenant = nil
  end
end

-- A turn for whoever goes first of those that do not rather wait. `round`: who was passed so far, and the workers
-- that they wait for; nobody who was passed is looked at twice.
local function grant_one(queue, mine, round)
  local id, record, start, route
  repeat
    id, record, start = head(queue, round)
    if not id then return false end
    route = best(record.routes, round.closed, hold)
    if not route then
      if not hold or round.count == PASSED_MAX then return false end
      round.count = round.count + 1
      round.passed[record.tenant] = (round.passed[record.tenant] or 0) + 1
    end
  until route
  record, round.tenant = read(id), nil
  with_tenant(queue, record.tenant, function()
    call('ZREM', queue.tickets, ticket_of(id, record))
    give_turn(queue, record, start)
    return start + record.cost / record.weight
  end)
  record.worker, record.tokens, record.routes = route[1], route[2], nil
  take(record)
  if id == mine then
    record.state = 'placed'
  else
    record.state = 'granted'
    call('ZADD', grants, now + CLAIM_MS, id)
    call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'turn', id)
  end
  write(id, record)
  return true
end

local function somebody_waits_before(queue)
  if not queue.background then return false end
  for _, other in ipairs(queues) do
    if not other.background and call('ZCARD', other.active) > 0 then return true end
  end
  return false
end

local function by_last(one, other)
  if one.last == other.last then return one.at < other.at end
  return one.last < other.last
end

-- The queues that may give a turn, those first that gave one longest ago; and the number of the turn given last.
local function in_turn(background)
  local found, last = {}, 0
  for i, queue in ipairs(queues) do
    if queue.background == background and call('ZCARD', queue.active) > 0 and not somebody_waits_before(queue) then
      local round = {passed = {}, count = 0, behind = 0, closed = {}}
      found[#found + 1] = {at = i, queue = queue, round = round, last = tonumber(call('HGET', queue.meta, 'g') or '0')}
      last = math.max(last, found[#found].last)
    end
  end
  table.sort(found, by_last)
  return found, last
end

-- Gives out what room there is; of several queues one turn each, lest a model whose requests pile up keeps another
-- one from the workers of both. Of more than GRANTS_MAX the rest is given when the caller asks again, at once.
local function grant(mine)
  local given = 0
  for _, background in ipairs({false, true}) do
    local left, last = in_turn(background)
    local several = #left > 1
    while left[1] and given < GRANTS_MAX do
      local each = table.remove(left, 1)
      if grant_one(each.queue, mine, each.round) then
        given = given + 1
        left[#left + 1] = each
        if several then
          last = last + 1
          call('HSET', each.queue.meta, 'g', last)
        end
      end
    end
  end
  more = given == GRANTS_MAX
end

-- An id goes, whatever it was: waiting, granted, placed or answering.
local function drop(id, record, change)
  local queue = queues[record.queue]
  if record.state == 'waiting' then
    if queue then dequeue(queue, id, record) end
  else
    free(record)
    if record.state == 'granted' then
      call('ZREM', grants, id)
      change = -record.cost
    end
    if queue and change ~= 0 then charge(queue, record, change) end
  end
  call('HDEL', places, id)
  call('ZREM', owned, id)
end

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

local function next_arg(args)
  at = at + 1
  return args[at - 1]
end

local function routes_of(args)
  local routes = {}
  for i = 1, tonumber(next_arg(args)) do
    local worker, tokens = next_arg(args), tonumber(next_arg(args))
    routes[i] = {worker, tokens, tonumber(next_arg(args)), tonumber(next_arg(args))}
  end
  return routes
end

-- {worker, tokens queued, streams, KV tokens, ...} of these workers.
local function loads_of(workers)
  local packed, told = packed_loads(workers), {}
  for i, worker in ipairs(workers) do
    local tokens, streams, kv = load_of(packed[i])
    told[4 * i - 3], told[4 * i - 2], told[4 * i - 1], told[4 * i] = worker, tokens, streams, kv
  end
  return told
end

-- admit: a place if there is room and nobody waits, else a ticket. Of the first queue; a batch queue is told of
--   those that go before it.
--   id, tenant, weight, cost, KV tokens, number of routes, routes
-- Outcome 1 {worker, tokens, loads, v, F}, 0 waits {'', 0, loads, v, F}, -1 it has ended already.
-- For one that waits already: its routes are these from now on. One whose turn has come has its place.
function verbs.admit(keys, args)
  if not open(keys, args) then return {-2, -1, 0} end
  local id, queue = next_arg(args), queues[1]
  if call('ZSCORE', ended, id) then return answer(-1) end
  local record = {queue = queue.name, tenant = next_arg(args), weight = tonumber(next_arg(args)),
    cost = tonumber(next_arg(args)), kv = tonumber(next_arg(args))}
  local routes = routes_of(args)
  local known = read(id)
  if known and known.state == 'waiting' then
    known.routes = routes
    write(id, known)
    grant(id)
  elseif not known then
    call('ZADD', owned, 0, id)
    local free = call('ZCARD', queue.active) == 0 and not somebody_waits_before(queue)
    local route = free and best(routes, {}, hold)
    if route then
      local start = math.max(passed(queue), finish_of(queue, record.tenant))
      give_turn(queue, record, start)
      record.state, record.worker, record.tokens = 'placed', route[1], route[2]
      take(record)
      write(id, record)
    else
      record.state, record.routes, record.number = 'waiting', routes, call('HINCRBY', queue.meta, 'n', 1)
      write(id, record)
      enqueue(queue, id, record)
      grant(id)
    end
  end
  -- Placed just now, or as it stands.
  if record.state ~= 'placed' then record = read(id) end
  if record.state == 'granted' then
    -- Its owner asks, since it has not heard of its turn: it need not claim it.
    record.state = 'placed'
    write(id, record)
    call('ZREM', grants, id)
  end
  local waits = record.state == 'waiting'
  return answer(waits and 0 or 1, waits and '' or record.worker, record.tokens or 0,
    loads_of(workers_of(routes)), text(passed(queue)), text(finish_of(queue, record.tenant)))
end

-- spare: a place that nobody waits for, in any of these queues, batch work apart; else nothing. It takes no turn.
--   id, tenant, weight, cost, KV tokens, number of routes, routes
-- Outcome 1 {worker, tokens, loads}, 0 there is none {'', 0, loads}, -1 it has ended already.
function verbs.spare(keys, args)
  if not open(keys, args) then return {-2, -1, 0} end
  local id = next_arg(args)
  if call('ZSCORE', ended, id) then return answer(-1) end
  local record = {queue = queues[1].name, tenant = next_arg(args), weight = tonumber(next_arg(args)),
    cost = tonumber(next_arg(args)), kv = tonumber(next_arg(args))}
  local routes, known = routes_of(args), read(id)
  if not known then
    local free = true
    for _, queue in ipairs(queues) do
      free = free and (queue.background or call('ZCARD', queue.active) == 0)
    end
    local route = free and best(routes, {})
    if not route then return answer(0, '', 0, loads_of(workers_of(routes))) end
    record.state, record.worker, record.tokens = 'placed', route[1], route[2]
    take(record)
    call('ZADD', owned, 0, id)
    write(id, record)
    known = record
  end
  return answer(1, known.worker, known.tokens, loads_of(workers_of(routes)))
end

-- claim: the owner of a turn takes it, for the ticket it was given to or for another one of that tenant.
--   id, another id or '', number of routes, routes (of the one that shall go, as they are now)
-- Outcome 1 {id that goes, worker, tokens, loads}, -1 it is no longer there.
function verbs.claim(keys, args)
  if not open(keys, args) then return {-2, -1, 0} end
  local id, other = next_arg(args), next_arg(args)
  local routes, record = routes_of(args), read(id)
  if record and record.state == 'placed' then return answer(1, id, record.worker, record.tokens, loads_of({record.worker})) end
  if not record or record.state ~= 'granted' then return answer(-1) end
  local queue, swapped = queues[record.queue], other ~= '' and read(other)
  if swapped and (swapped.state ~= 'waiting' or swapped.tenant ~= record.tenant or swapped.queue ~= record.queue) then
    swapped = nil
  end
  free(record)
  local route = (swapped or other == '') and best(routes, {}, hold)
  local goes = id
  if swapped and route then
    goes = other
    dequeue(queue, other, swapped)
    charge(queue, record, swapped.cost - record.cost)
    record.state, record.routes = 'waiting', {{record.worker, record.tokens, 0, 0}}
    record.worker, record.tokens = nil, nil
    write(id, record)
    enqueue(queue, id, record)
    record = swapped
  end
  if route then record.worker, record.tokens = route[1], route[2] end
  record.state, record.routes = 'placed', nil
  take(record)
  write(goes, record)
  call('ZREM', grants, id)
  grant()
  return answer(1, goes, record.worker, record.tokens, loads_of({record.worker}))
end

-- release: a first token came, or the request has ended, wherever it stood.
--   id, 'first' or 'end', units by which what was used differs from its cost
-- Outcome 1 {loads}, 0 it was not there.
function verbs.release(keys, args)
  if not open(keys, args) then return {-2, -1, 0} end
  local id, first, change = next_arg(args), next_arg(args) == 'first', tonumber(next_arg(args))
  local record = read(id)
  if not first then
    call('ZREMRANGEBYSCORE', ended, '-inf', now)
    call('ZADD', ended, now + ENDED_MS, id)
  end
  if not record then return answer(0, {}) end
  if first then
    if record.state == 'placed' then
      load_changes(record.worker, -record.tokens, 0, 0)
      record.state = 'answering'
      write(id, record)
    end
  else
    drop(id, record, change)
  end
  grant()
  return answer(1, loads_of(record.worker and {record.worker} or {}))
end

-- expire: turns that nobody claims go to the next.
--   ms by which the clock is ahead: 0
function verbs.expire(keys, args)
  if not open(keys, args) then return {-2, -1, 0} end
  local late = call('ZRANGEBYSCORE', grants, '-inf', now + tonumber(next_arg(args)), 'LIMIT', 0, SWEPT_MAX)
  for _, id in ipairs(late) do
    local record = read(id)
    if record then drop(id, record, 0) end
    call('ZREM', grants, id)
  end
  grant()
  return answer(1)
end

-- beat: the gateway lives on for so long; 0: it leaves.
--   lease in ms
-- Outcome 1 {{gateways whose lease is over}, {worker, tokens queued, streams, KV tokens, ...}}
function verbs.beat(keys, args)
  local lease = tonumber(args[5 + tonumber(args[4])])
  if not open(keys, args) then return {-2, -1, 0} end
  if lease == 0 then
    drop_all_of(args[1])
    call('ZREM', gateways, args[1])
    call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'gateways', '')
    grant()
    return answer(1, {}, {})
  end
  call('ZADD', gateways, now + lease, args[1])
  return answer(1, call('ZRANGEBYSCORE', gateways, '-inf', now, 'LIMIT', 0, 64), loads_of(call('HKEYS', loads)))
end

-- reap: a gateway whose lease is over holds nothing any more.
--   the gateway, ms by which the clock is ahead: 0
function verbs.reap(keys, args)
  if not open(keys, args) then return {-2, -1, 0} end
  local dead, ahead = next_arg(args), tonumber(next_arg(args))
  local lease = call('ZSCORE', gateways, dead)
  if lease and tonumber(lease) > now + ahead then return answer(0) end
  drop_all_of(dead)
  if call('ZREM', gateways, dead) == 1 then
    call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'gateways', '')
  end
  grant()
  return answer(1)
end

-- join: a gateway begins, or begins again: what it holds is this, and nothing else.
--   lease in ms, id of this call, 1 if it is the first part of several, number of places,
--   places {id, queue, tenant, weight, cost, KV tokens, worker, tokens (0: answering)},
--   number of services, services {queue, tenant, units over weight}: given while Redis was away, added once
function verbs.join(keys, args)
  local new = not open(keys, args)
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
      take(record)
      call('ZADD', owned, 0, place)
      write(place, record)
    end
  end
  local again = call('ZSCORE', ended, id)
  call('ZADD', ended, now + ENDED_MS, id)
  for _ = 1, tonumber(next_arg(args)) do
    local queue, tenant, units = queues[next_arg(args)], next_arg(args), tonumber(next_arg(args))
    if queue and not again then charge(queue, {tenant = tenant, weight = 1}, units) end
  end
  if new then call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'gateways', '') end
  grant()
  return answer(1)
end
