-- One queue per model, and the load of every worker, for all gateways: which request has its turn, and where there is
-- room.
--
--   admit --- room, and no request waits -------------------> placed --first--> answering --end--> gone
--     +--> waiting --turn: load is taken, its owner told--> granted --claim--^
--             ^                                                |
--             +--- its owner asks again <--- 250 ms over ------+
--
-- A queue whose name ends in "#batch" gives turns only while no request waits in the other queues that a call names.
-- The request that goes first waits until a worker that it accepts has room: smaller requests do not pass it there, but
-- others may go to workers that no request before them waits for. A request that was passed over is not looked at again
-- until one of its workers changes.
--
-- One gateway alone gives turns by the same rules, in Python:
--   best_route, leaves_one_open, hold_while_contended
--       OwnTurnPlacements.place_now in gateway/dispatch/acquisition/own_turn_placements.py, with these functions,
--       fits_window, close_enough_to_best, ClosedWorkers and the constants of policies/admission/dispatch_window.py,
--       where DispatchWindow has window_of (as tokens), choices and leaves_slots; the costs there are of that moment
--   first_waiting, grant_one, grant
--       FlowHeads in policies/queueing/two_level_order.py, WaitingRoom.give_turns and WaitingRooms.give_turns in
--       gateway/queueing; a flow is a tenant in a queue here
--   enqueue, give_turn, correct
--       arrive, next and correct of Sfq in policies/queueing/sfq.py
--   keep_in_step, is_ahead
--       policies/cell_turns.py; a gateway alone follows no bounds
--   stays_in_vain, is_no_wider
--       VainLook and is_no_wider of policies/admission/passed_over.py; a gateway alone looks anew each time
-- Some rules are different here. A worker where all that is ahead is of other cells counts as idle (best_route); a gateway
-- alone does not tell their work apart. The shards among which a model's tenants are divided are to each other as cells
-- are, but for that: their work counts in full, and is told within milliseconds. And the tickets of a tenant go by number; the gateway that is told of a turn may
-- claim it for another ticket of the tenant. tests/property/test_shared_queue.py compares this file with a model made of those functions.
--
-- KEYS  1 gateways    sorted set: gateway -> end of its lease in ms
--       2 loads       hash: worker -> tokens queued, streams, KV tokens, packed; then what other cells have of these
--       3 places      hash: id -> record, in any state
--       4 owned       sorted set of ids, by name: "gateway:number"
--       5 grants      sorted set: id -> ms by which it has to be claimed
--       6 ended       sorted set: id -> ms until which it is remembered
--       7 turns       stream: turns that were granted, and that gateways came or went
--       then for every queue
--       1 meta        hash: v, the virtual time; n, the last number; g, when it gave a turn beside others; s, the
--                     largest start tag that may take a worker which is not idle, and u, until when in ms (see cells);
--                     m, the memory of the server that last searched it (see recall)
--       2 active      sorted set: "number tenant" -> start tag, of tenants that wait; number: of its first ticket
--       3 finish      sorted set: tenant -> finish tag
--       4 tickets     sorted set, by name: "tenant number id"
-- ARGV  1 gateway, then the terms: the DispatchWindow of policies/admission/dispatch_window.py and the setting `hold`
--       2 narrow and 3 wide window in tokens  4 most tokens ahead of an open worker; '': none need be left open
--       5 1: contended; 2 is added where the tenants of the model are divided among shards
--       6 1: a prompt takes space of the wide window itself
--       7 share by which a worker may cost more than the best one; '': any worker with room will do
--       8 the filled workers (policies/admission/filled_workers.py): their window in tokens, the least TTFT target of
--         patient classes in seconds, and the last open worker, with spaces between; '': none is filled
--       9 requests that are passed over at most before the search for one that has room ends
--       10 number of queues, their names; then the arguments of the verb
-- Returns {outcome, ms to the next deadline or -1, gateways, ...}; outcome -2: the gateway has no lease, and joins.
--
-- Every verb may be repeated with the same result. Loops are bounded by the constants below.
--
-- Records  waiting    asks for a turn: `routes`, `number`          granted    has a turn until its deadline in grants
--          placed     its load is taken: `worker`, `tokens`        answering  the same, its prefill is done
local verbs = {}
local CLAIM_MS, ENDED_MS, SWEEP_MS = 250, 10000, 1000
local GRANTS_MAX, SWEPT_MAX, FINISH_MAX, TURNS_MAX = 8, 512, 10000, 4096
local UNPACKED_MAX, WEIGHED_MAX, HEADS_READ = 256, 16, 16
local REMEMBERED_QUEUES_MAX, REMEMBERED_LOOKS_MAX, REMEMBERED_LOADS_MAX = 4096, 4096, 16384
-- As in policies/admission/dispatch_window.py.
local HOLD_MS, CONTENDED_HOLD, OPEN_OF_WORKERS = 10, 1, 4
local PASSED_OVER_MAX, PASSED_OVER_OF_FLOW_MAX = 16, 4
-- As in policies/admission/traffic_in_sight.py and recent_work.py.
local CROWDING_SHARE, CROWDING_MAX = 0.5, 2
-- As in policies/admission/filled_workers.py.
local SPARE_SHARE = 0.1

-- Records that `look` has unpacked, by their packed form, from call to call; and how many.
local unpacked, unpacked_count = {}, 0

-- What searches have seen, from call to call, by the key `meta` of a queue: `looks`, the looks in vain by id (see
-- best_route); `tickets`, the first tickets of tenants that were passed over; `count`, how many looks were added.
local remembered, remembered_count = {}, 0

-- The loads that were last read or written, by the key `loads` and worker; and how many.
local last_loads, last_loads_count = {}, 0

-- The name of this memory, which is set by the first call.
local memory_name

-- When ids that have ended were last removed from `ended`, in ms.
local ended_swept = 0

-- Set anew by every call; redis.call is not there yet when a library is loaded. `known_loads` has the loads that this
-- call has read: {tokens, streams, KV tokens, and what other cells have of the three} by worker. `terms`: see ARGV.
-- `next_at`: the index of the next argument. `more`: whether GRANTS_MAX ended the giving
-- of turns, so that a further call may find more to give.
-- `seen`: the tokens queued by worker that the calling gateway knows of, also from other shards.
-- `in_step`: other shards and cells have just told what they have (see cells).
local call, now, gateways, loads, places, owned, grants, ended, turns, queues, terms, next_at, more, known_loads, seen, in_step

-- Begins a call of a verb: sets the variables above. Returns the end of the gateway's lease; nothing without a lease.
local function begin(keys, args)
  call = redis.call
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  gateways, loads, places, owned, grants, ended, turns = unpack(keys, 1, 7)
  local flags = tonumber(args[5])
  terms = {narrow = tonumber(args[2]), wide = tonumber(args[3]), open = tonumber(args[4]), contended = flags % 2 == 1,
    divided = flags >= 2, counts_own = args[6] == '1', hold = tonumber(args[7]),
    passed_over_max = tonumber(args[9]), no_wider = {}}
  if args[8] ~= '' then
    local tokens, target, last_open = string.match(args[8], '^(%S+) (%S+) (.*)$')
    terms.filled, terms.patient_target, terms.last_open = tonumber(tokens), tonumber(target), last_open
  end
  queues, more, known_loads, seen, in_step = {}, false, {}, {}, false
  memory_name = memory_name or table.concat({args[1], time[1], time[2]}, ' ')
  local count = tonumber(args[10])
  for i = 1, count do
    local k = 7 + (i - 1) * 4
    local queue = {name = args[10 + i], meta = keys[k + 1], active = keys[k + 2], finish = keys[k + 3],
      tickets = keys[k + 4], finishes = {}, background = string.sub(args[10 + i], -6) == '#batch'}
    queues[i], queues[queue.name] = queue, queue
  end
  next_at = 11 + count
  return call('ZSCORE', gateways, args[1])
end

local function text(number) return string.format('%.17g', number) end

local function reply(outcome, ...)
  local first = call('ZRANGE', grants, 0, 0, 'WITHSCORES')
  local due = more and 0 or first[2] and math.max(0, tonumber(first[2]) - now) or -1
  return {outcome, due, call('ZCARD', gateways), ...}
end

-- Records.

local function read(id)
  local found = call('HGET', places, id)
  return found and cmsgpack.unpack(found)
end

-- Returns a record that is not to be changed. The request that goes first is looked at by verb after verb: to unpack it
-- each time would cost more than the rest of a look.
local function look(id)
  local found = call('HGET', places, id)
  if found and not unpacked[found] then
    if unpacked_count == UNPACKED_MAX then unpacked, unpacked_count = {}, 0 end
    unpacked[found], unpacked_count = cmsgpack.unpack(found), unpacked_count + 1
  end
  return found and unpacked[found]
end

-- Writes a record; a look at what it was before says nothing any more.
local function write(id, record)
  local queue = queues[record.queue]
  local memory = queue and remembered[queue.meta]
  if memory then memory.looks[id] = nil end
  call('HSET', places, id, cmsgpack.pack(record))
end

local LOAD, LOAD_WITH_CELLS = '<i8i8i8', '<i8i8i8i8i8i8'

local function load_of(packed)
  if not packed then return {0, 0, 0, 0, 0, 0} end
  if #packed > 24 then return {struct.unpack(LOAD_WITH_CELLS, packed)} end
  local tokens, streams, kv = struct.unpack(LOAD, packed)
  return {tokens, streams, kv, 0, 0, 0}
end

-- Remembers a load for later calls.
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
  load[1], load[2], load[3] = load[1] + tokens, load[2] + streams, load[3] + kv
  if seen[worker] then seen[worker] = seen[worker] + tokens end
  if load[2] == 0 then
    known_loads[worker] = {0, 0, 0, 0, 0, 0}
    remember_load(worker, known_loads[worker])
    call('HDEL', loads, worker)
  elseif load[5] > 0 then
    call('HSET', loads, worker, struct.pack(LOAD_WITH_CELLS, unpack(load, 1, 6)))
  else
    call('HSET', loads, worker, struct.pack(LOAD, load[1], load[2], load[3]))
  end
end

local function add_load(record) change_load(record.worker, record.tokens, 1, record.kv) end

local function remove_load(record)
  change_load(record.worker, record.state == 'answering' and 0 or -record.tokens, -1, -record.kv)
end

local function workers_of(routes)
  local workers = {}
  for i, route in ipairs(routes) do workers[i] = route[1] end
  return workers
end

-- Returns whether another of these workers is open when an idle one takes a prompt that is longer than its window.
local function leaves_one_open(routes, background)
  local count = 0
  for _, route in ipairs(routes) do
    if known_loads[route[1]][1] <= terms.open then count = count + 1 end
  end
  return #routes == 1 or count > 1 or #routes < OPEN_OF_WORKERS and not background
end

-- Returns how many tokens are ahead of an open worker at most; nothing for a request that need not leave one open.
local function open_beside(is_narrow, work_share)
  if terms.counts_own or is_narrow or work_share > CROWDING_SHARE / CROWDING_MAX then return terms.open end
end

-- Returns by what share a worker may cost more for a tenant that has no more requests waiting, beside one that has.
local function hold_while_contended(hold) return hold and math.max(hold, CONTENDED_HOLD) end

-- Returns the window of a worker for a request, which is `patient` if it fills the workers that urgent classes leave.
local function window_of(worker, is_narrow, patient)
  if patient then return worker <= terms.last_open and terms.narrow or terms.filled end
  return is_narrow and terms.narrow or terms.wide
end

-- Returns the routes that a request may wait for: a patient one goes to open workers if it is short, an urgent one to
-- filled ones if more of its prompt is cached there.
local function choices(routes, patient)
  if not terms.filled then return routes end
  local found, least = {}, math.huge
  for _, route in ipairs(routes) do
    if route[1] <= terms.last_open then least = math.min(least, route[2]) end
  end
  for _, route in ipairs(routes) do
    local may = patient or route[2] < least
    if route[1] <= terms.last_open then may = not patient or route[2] <= terms.narrow end
    if may then found[#found + 1] = route end
  end
  return #found > 0 and found or routes
end

-- Returns whether a request may have a slot of an engine, where others have to find some left: other classes beside
-- batch work, other tenants beside one that crowds or has most of the recent work.
local function leaves_slots(route, streams, background, is_narrow, work_share)
  local slots, has_to = route[5], is_narrow or work_share > CROWDING_SHARE
  if background then has_to = terms.counts_own end
  if not has_to or not slots or slots == 0 then return true end
  return streams < math.max(1, slots - math.ceil(SPARE_SHARE * slots))
end

-- Returns the queued tokens that the cost of a route counts by now: tokens_counted of policies/latency_model.py.
local function tokens_counted(route, queued)
  return math.max(queued, math.min(queued + (route[6] or 0), route[7] or 0))
end

-- Closes the workers that a request waits for to later requests: to all, or to those of crowding tenants.
local function close(waits_for, closed, crowds)
  for worker in pairs(waits_for) do
    if closed[worker] ~= 'all' then closed[worker] = crowds and 'crowding' or 'all' end
  end
end

-- Returns the cheapest route that is worth going and has room now, at a worker that is not closed. Without one, the
-- workers that the request waits for are closed to later requests: to all, or to those of crowding tenants, which have
-- more requests waiting. `hold`: the share by which a worker may cost more than the best one; nil: any will do.
-- `is_narrow`: the narrow window applies; `background`: it is batch work; `target`: the TTFT target of its class in
-- seconds; `work_share`: its tenant's share of the recent work before it came; `ahead_of_cells`: only an idle worker
-- will do, since its turn is too far ahead of other cells, or of other shards; there the workers that are idle go first
-- to the shard that is furthest behind, when all have told their loads. Routes are {worker, uncached tokens, fixed ms,
-- ms per queued token, slots of the engine or 0, and of the tokens queued when it was ranked: those that fixed ms takes
-- off as computed, all}.
-- A look in vain returns nil and what was seen: the terms of the request, its workers with the loads `tokens`, `own`
-- (not of other cells) and `streams`, those that it `waits_for`, and those with room that were closed to it.
local function best_route(all_routes, closed, hold, is_narrow, background, target, work_share, ahead_of_cells)
  read_loads(workers_of(all_routes))
  local costs, least, found, crowds = {}, math.huge, nil, is_narrow and not background
  work_share = work_share or 0 -- A record of an earlier version has none.
  local open = open_beside(is_narrow, work_share)
  local kept_out = {}
  local patient = terms.filled and (target or 0) >= terms.patient_target
  local routes = choices(all_routes, patient)
  if (terms.contended or patient) and not is_narrow then hold = hold_while_contended(hold) end
  for i, route in ipairs(routes) do
    local load, window = known_loads[route[1]], window_of(route[1], is_narrow, patient)
    local ahead = math.max(load[1], seen[route[1]] or load[1])
    -- As fits_window: an idle worker takes any prompt, and so does one where all that is ahead is of other cells, which
    -- might keep it busy for ever.
    local taken = (is_narrow or terms.counts_own or route[2] > window) and route[2] or 1
    local cost, room = route[3] + route[4] * tokens_counted(route, ahead), ahead == 0 or ahead + taken <= window
    if not terms.divided then room = room or ahead == load[4] end
    if ahead_of_cells then room = ahead == 0 and (in_step or not terms.divided) end
    if room and open and route[2] > window then room = leaves_one_open(all_routes, background) end
    room = room and leaves_slots(route, load[2], background, is_narrow, work_share)
    if cost < least then least = cost end
    if room and (not found or cost < costs[found]) then
      local closed_to = closed[route[1]]
      if not (closed_to == 'all' or closed_to and crowds) then found = i else kept_out[#kept_out + 1] = i end
    end
    costs[i] = cost
  end
  -- What close_enough_to_best allows.
  local cost_max = hold and least + math.max(math.abs(least) * hold, HOLD_MS) or math.huge
  if found and costs[found] <= cost_max then return routes[found] end
  local vain = {terms = terms, is_narrow = is_narrow, ahead_of_cells = ahead_of_cells, workers = workers_of(all_routes),
    by_streams = background or is_narrow or work_share > CROWDING_SHARE, tokens = {}, own = {}, streams = {}, waits_for = {}, kept_out = {}}
  for i, route in ipairs(routes) do
    if costs[i] <= cost_max then vain.waits_for[route[1]] = true end
  end
  for i, at in ipairs(kept_out) do
    if costs[at] <= cost_max then vain.kept_out[#vain.kept_out + 1] = routes[at][1] end
  end
  for i, worker in ipairs(vain.workers) do
    local load = known_loads[worker]
    vain.tokens[i], vain.own[i], vain.streams[i] = load[1], load[1] - load[4], load[2]
  end
  close(vain.waits_for, closed, crowds)
  return nil, vain
end

-- Returns whether these terms leave no request more room than those before.
local function is_no_wider(before)
  if terms.no_wider[before] == nil then
    terms.no_wider[before] = terms.narrow <= before.narrow and terms.wide <= before.wide
      and (terms.open or -1) <= (before.open or -1) and (terms.open == nil) == (before.open == nil)
      and terms.contended == before.contended and terms.counts_own == before.counts_own
      and terms.hold == before.hold and terms.filled == before.filled
      and terms.patient_target == before.patient_target and terms.last_open == before.last_open
  end
  return terms.no_wider[before]
end

-- Returns whether another look would be in vain, too: no worker has changed in a way that could help the request.
local function stays_in_vain(vain, closed, is_narrow, background, ahead_of_cells)
  if vain.is_narrow ~= is_narrow or vain.ahead_of_cells ~= ahead_of_cells or not is_no_wider(vain.terms) then
    return false
  end
  for _, worker in ipairs(vain.kept_out) do
    local closed_to = closed[worker]
    if not (closed_to == 'all' or closed_to and is_narrow and not background) then return false end
  end
  local now_there = last_loads[loads] or {}
  for i, worker in ipairs(vain.workers) do
    local load, tokens = now_there[worker], vain.tokens[i]
    if not load or load[1] < tokens or load[1] ~= tokens and vain.waits_for[worker]
      or load[1] - load[4] < vain.own[i] or vain.by_streams and load[2] < vain.streams[i] then
      return false
    end
  end
  return true
end

-- Queues.

-- Returns whether the narrow window applies to a queue's request. `crowds`: its tenant has more requests waiting.
local function narrow_applies(queue, crowds) return queue.background or terms.contended and crowds end

local function ticket_of(id, record) return record.tenant .. '\0' .. string.format('%016d', record.number) .. '\0' .. id end

-- Returns a tenant's first tickets, so many of them, in their order.
local function tickets_of(queue, tenant, count)
  return call('ZRANGEBYLEX', queue.tickets, '[' .. tenant .. '\0', '(' .. tenant .. '\1', 'LIMIT', 0, count)
end

local function member(ticket, tenant) return ticket and string.sub(ticket, #tenant + 2, #tenant + 17) .. '\0' .. tenant end

-- The virtual time, read once in a call, and the largest start tag that may take a worker which is not idle.
local function virtual_time(queue)
  if not queue.virtual_time then
    local v, start_max, ends, memory = unpack(call('HMGET', queue.meta, 'v', 's', 'u', 'm'))
    queue.virtual_time = tonumber(v or '0')
    queue.start_max = start_max and now < tonumber(ends) and tonumber(start_max) or math.huge
    queue.searched_here = memory == memory_name
  end
  return queue.virtual_time, queue.start_max
end

-- Returns whether a turn with this start tag is too far ahead of other cells for a worker that is not idle.
local function is_ahead(queue, start)
  local _, start_max = virtual_time(queue)
  return start > start_max
end

-- Returns what searches of a queue have seen. Another server that has searched it since, or a queue that is new, makes
-- it void.
local function recall(queue)
  virtual_time(queue)
  local memory = remembered[queue.meta]
  if not memory or not queue.searched_here or memory.count >= REMEMBERED_LOOKS_MAX then
    if not queue.searched_here then call('HSET', queue.meta, 'm', memory_name) end
    if remembered_count >= REMEMBERED_QUEUES_MAX then remembered, remembered_count = {}, 0 end
    if not remembered[queue.meta] then remembered_count = remembered_count + 1 end
    memory, queue.searched_here = {looks = {}, tickets = {}, count = 0}, true
    remembered[queue.meta] = memory
  end
  return memory
end

-- The finish tag of a tenant, read once in a call.
local function finish_of(queue, tenant)
  if not queue.finishes[tenant] then queue.finishes[tenant] = tonumber(call('ZSCORE', queue.finish, tenant) or '') end
  return queue.finishes[tenant] or (virtual_time(queue))
end

local function finish_at(queue, tenant, tag)
  -- Kept as it is read again: text has all its digits.
  queue.finishes[tenant] = tag
  if call('ZADD', queue.finish, text(tag), tenant) == 1 and call('ZCARD', queue.finish) > FINISH_MAX then
    call('ZREMRANGEBYRANK', queue.finish, 0, 99)
    queue.finishes = {}
  end
end

-- How many tenants wait, read once until that changes.
local function waiting_tenants(queue)
  if not queue.waiting then queue.waiting = call('ZCARD', queue.active) end
  return queue.waiting
end

-- Changes a tenant's tickets or its tag by `how`, and its place among the active ones accordingly.
local function with_tenant(queue, tenant, how)
  local before = tickets_of(queue, tenant, 1)[1]
  local start = before and tonumber(call('ZSCORE', queue.active, member(before, tenant)))
  local tag = how(start)
  local after = tickets_of(queue, tenant, 1)[1]
  if before and before ~= after then call('ZREM', queue.active, member(before, tenant)) end
  if after then call('ZADD', queue.active, text(tag), member(after, tenant)) end
  if remembered[queue.meta] then remembered[queue.meta].tickets[tenant] = nil end
  queue.waiting = nil
end

local function enqueue(queue, id, record)
  with_tenant(queue, record.tenant, function(start)
    call('ZADD', queue.tickets, 0, ticket_of(id, record))
    if start then return start end
    local tag = math.max((virtual_time(queue)), finish_of(queue, record.tenant))
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

-- Changes what a tenant is charged with, and so its next start.
local function correct(queue, record, cost_change)
  if waiting_tenants(queue) == 0 then
    finish_at(queue, record.tenant, finish_of(queue, record.tenant) + cost_change / record.weight)
    return
  end
  with_tenant(queue, record.tenant, function(start)
    local tag = (start or finish_of(queue, record.tenant)) + cost_change / record.weight
    finish_at(queue, record.tenant, tag)
    return start and tag
  end)
end

local function give_turn(queue, record, start)
  if start > virtual_time(queue) then
    queue.virtual_time = start
    call('HSET', queue.meta, 'v', text(start))
  end
  finish_at(queue, record.tenant, start + record.cost / record.weight)
end

-- Returns the tenant behind those that `round.behind` counts, as in `active`, and its start tag; reads several at once.
local function head(queue, round)
  local at = round.heads and 2 * (round.behind - round.heads_at)
  if not at or at >= 2 * HEADS_READ then
    at, round.heads_at = 0, round.behind
    round.heads = call('ZRANGE', queue.active, round.behind, round.behind + HEADS_READ - 1, 'WITHSCORES')
  end
  return round.heads[at + 1], tonumber(round.heads[at + 2] or '')
end

-- Returns whether a round that has found no room for one more request may go on behind it.
local function may_pass_over(round) return terms.hold and round.count < terms.passed_over_max end

local function pass_over(round, tenant)
  round.passed_over[tenant] = (round.passed_over[tenant] or 0) + 1
  round.count = round.count + 1
end

-- Returns whether a look at this request is known to be in vain. The workers that it waits for are then closed.
local function is_in_vain(queue, round, id)
  local vain = round.memory.looks[id]
  local is_narrow = vain and narrow_applies(queue, #round.tickets > 1)
  if not vain or not stays_in_vain(vain, round.closed, is_narrow, queue.background, is_ahead(queue, round.start)) then
    return false
  end
  close(vain.waits_for, round.closed, is_narrow and not queue.background)
  return true
end

-- Returns the request that goes first of those that are not passed over, and whose look is not known to be in vain: the
-- id of the first ticket left of the tenant with the least start tag, its record and that tag; tickets without a record
-- are dropped. `round.behind`: how many
-- tenants at the head of the order have only requests that this round has passed over. The search goes on behind
-- them, and they stay at the head: only a tenant that gets a turn moves back.
local function first_waiting(queue, round)
  for _ = 1, SWEPT_MAX do
    if not round.tenant then
      round.active, round.start = head(queue, round)
      if not round.active then return nil end
      round.tenant = string.sub(round.active, 18)
      round.tickets = round.memory.tickets[round.tenant] or tickets_of(queue, round.tenant, PASSED_OVER_OF_FLOW_MAX)
    end
    local tenant, passed_over = round.tenant, round.passed_over[round.tenant] or 0
    local ticket = round.tickets[passed_over + 1]
    local id = ticket and string.sub(ticket, #tenant + 19)
    if id and is_in_vain(queue, round, id) then
      if not may_pass_over(round) then return nil end
      pass_over(round, tenant)
    else
      local record = id and look(id)
      if record and record.state == 'waiting' then return id, record, round.start end
      round.tenant = nil
      if ticket then
        round.heads = nil
        with_tenant(queue, tenant, function(start)
          call('ZREM', queue.tickets, ticket)
          return start
        end)
      elseif passed_over > 0 then
        round.behind = round.behind + 1
        round.memory.tickets[tenant] = round.tickets
      else
        round.heads = nil
        call('ZREM', queue.active, round.active)
        queue.waiting = nil
      end
    end
  end
end

-- Gives a turn to the first request that some worker with room is good enough for. `round`: how many
-- requests were passed over so far, by tenant, and the workers that they wait for; none of them is looked at twice.
local function grant_one(queue, mine, round)
  local id, record, start, route, vain
  round.memory = recall(queue)
  repeat
    id, record, start = first_waiting(queue, round)
    if not id then return false end
    local is_narrow = narrow_applies(queue, #round.tickets > 1)
    route, vain = best_route(record.routes, round.closed, terms.hold, is_narrow, queue.background, record.target,
      record.work_share, is_ahead(queue, start))
    if not route then
      if not terms.divided then
        round.memory.looks[id], round.memory.count = vain, round.memory.count + 1
      end
      if round.looks >= PASSED_OVER_MAX or not may_pass_over(round) then return false end
      round.looks = round.looks + 1
      pass_over(round, record.tenant)
    end
  until route
  record, round.tenant, round.heads = read(id), nil, nil
  with_tenant(queue, record.tenant, function()
    call('ZREM', queue.tickets, ticket_of(id, record))
    give_turn(queue, record, start)
    return start + record.cost / record.weight
  end)
  record.worker, record.tokens, record.routes = route[1], route[2], nil
  add_load(record)
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

local function requests_wait_before(queue)
  if not queue.background then return false end
  for _, other in ipairs(queues) do
    if not other.background and waiting_tenants(other) > 0 then return true end
  end
  return false
end

local function by_last(one, other)
  if one.last == other.last then return one.position < other.position end
  return one.last < other.last
end

-- Returns the queues that may give a turn, those first that gave one longest ago; and the number of the last turn.
local function in_turn(background)
  local found, last = {}, 0
  for i, queue in ipairs(queues) do
    if queue.background == background and waiting_tenants(queue) > 0 and not requests_wait_before(queue) then
      local round = {passed_over = {}, count = 0, looks = 0, behind = 0, closed = {}}
      local granted = tonumber(call('HGET', queue.meta, 'g') or '0')
      found[#found + 1] = {position = i, queue = queue, round = round, last = granted}
      last = math.max(last, found[#found].last)
    end
  end
  table.sort(found, by_last)
  return found, last
end

-- Gives out what room there is; of several queues one turn each, so that a model whose requests pile up does not keep
-- another one from the workers of both. Of more than GRANTS_MAX turns the rest is given when the caller asks again, at
-- once.
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

-- Removes an id in any state: waiting, granted, placed or answering.
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
  next_at = next_at + 1
  return args[next_at - 1]
end

local function routes_of(args)
  local routes = {}
  for i = 1, tonumber(next_arg(args)) do
    local worker, tokens = next_arg(args), tonumber(next_arg(args))
    local fixed, per_token, slots = tonumber(next_arg(args)), tonumber(next_arg(args)), tonumber(next_arg(args))
    local computed, queued = tonumber(next_arg(args)), tonumber(next_arg(args))
    routes[i] = {worker, tokens, fixed, per_token, slots, computed, queued}
    if terms.divided then seen[worker] = queued end
  end
  return routes
end

-- Returns {worker, tokens queued, streams, KV tokens, ...} of these workers.
local function loads_of(workers)
  read_loads(workers)
  local found = {}
  for i, worker in ipairs(workers) do
    local load = known_loads[worker]
    found[4 * i - 3], found[4 * i - 2], found[4 * i - 1], found[4 * i] = worker, load[1], load[2], load[3]
  end
  return found
end

-- admit: a place if there is room and no request waits, else a ticket. Of the first queue; with a batch queue come the
--   queues that go before it.
--   id, tenant, weight, cost, KV tokens, TTFT target in seconds, its tenant's share of the recent work, number of
--   routes, routes
-- Outcome 1 {worker, tokens, loads, virtual time, finish tag}, 0 waits {'', 0, loads, virtual time, finish tag}, -1 it has
-- ended already.
-- Of a ticket that waits already, the routes are these from now on. One whose turn has come has its place.
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
    local route = unblocked and best_route(routes, {}, terms.hold, narrow_applies(queue, false), queue.background,
      record.target, record.work_share, is_ahead(queue, start))
    if route then
      give_turn(queue, record, start)
      record.state, record.worker, record.tokens = 'placed', route[1], route[2]
      add_load(record)
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
    -- Its owner asks, since it was not told of its turn yet: it need not claim it.
    record.state = 'placed'
    write(id, record)
    call('ZREM', grants, id)
  end
  local waits = record.state == 'waiting'
  return reply(waits and 0 or 1, waits and '' or record.worker, record.tokens or 0,
    loads_of(workers_of(routes)), text((virtual_time(queue))), text(finish_of(queue, record.tenant)))
end

-- spare: a place that no request waits for in any of these queues, batch work apart; else nothing. It takes no turn.
--   id, tenant, weight, cost, KV tokens, TTFT target in seconds, its tenant's share of the recent work, number of
--   routes, routes
-- Outcome 1 {worker, tokens, loads}, 0 there is none {'', 0, loads}, -1 it has ended already.
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
    local route = unblocked
      and best_route(routes, {}, nil, false, queues[1].background, record.target, record.work_share)
    if not route then return reply(0, '', 0, loads_of(workers_of(routes))) end
    record.state, record.worker, record.tokens = 'placed', route[1], route[2]
    add_load(record)
    call('ZADD', owned, 0, id)
    write(id, record)
    known = record
  end
  return reply(1, known.worker, known.tokens, loads_of(workers_of(routes)))
end

-- Returns the ticket that its gateway wants to send in place of a granted one: a waiting one of the same tenant and
-- queue. Nil if none is named, or it no longer waits.
local function ticket_to_send_instead(granted, other_id)
  local other = other_id ~= '' and read(other_id)
  if other and other.state == 'waiting' and other.tenant == granted.tenant and other.queue == granted.queue then
    return other
  end
end

-- Takes a waiting ticket out of the queue, and puts the granted one back in: the tenant's turn is charged with the cost
-- of the ticket that goes.
local function exchange_tickets(queue, granted_id, granted, other_id, other)
  dequeue(queue, other_id, other)
  correct(queue, granted, other.cost - granted.cost)
  granted.state, granted.routes = 'waiting', {{granted.worker, granted.tokens, 0, 0, 0}}
  granted.worker, granted.tokens = nil, nil
  write(granted_id, granted)
  enqueue(queue, granted_id, granted)
end

-- claim: the gateway that was told of a turn takes it, for the ticket that it was given to or for another one of that
--   tenant.
--   id, id of the other ticket or '', number of routes, routes (of the ticket that is to go, as they are now)
-- Outcome 1 {id that goes, worker, tokens, loads}, -1 the turn is no longer there.
function verbs.claim(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local granted_id, other_id = next_arg(args), next_arg(args)
  local routes, granted = routes_of(args), read(granted_id)
  if granted and granted.state == 'placed' then  -- A repeated claim.
    return reply(1, granted_id, granted.worker, granted.tokens, loads_of({granted.worker}))
  end
  if not granted or granted.state ~= 'granted' then return reply(-1) end
  local queue, other = queues[granted.queue], ticket_to_send_instead(granted, other_id)

  -- Rank the workers anew, as if the turn had not been given. The routes are of the other ticket where one is named:
  -- if that no longer waits, they do not hold for the granted one, which keeps its worker.
  remove_load(granted)
  local route
  if other or other_id == '' then
    local is_narrow = narrow_applies(queue, terms.contended and #tickets_of(queue, granted.tenant, 1) > 0)
    route = best_route(routes, {}, terms.hold, is_narrow, queue.background, (other or granted).target,
      (other or granted).work_share)
  end

  -- Choose the ticket that goes.
  local id, record = granted_id, granted
  if other and route then
    exchange_tickets(queue, granted_id, granted, other_id, other)
    id, record = other_id, other
  end

  -- Place it; without a better worker, at the one that the turn was given for.
  if route then record.worker, record.tokens = route[1], route[2] end
  record.state, record.routes = 'placed', nil
  add_load(record)
  write(id, record)
  call('ZREM', grants, granted_id)
  grant()
  return reply(1, id, record.worker, record.tokens, loads_of({record.worker}))
end

-- progress: the first token came, or the request has ended, in any state.
--   id, 'first' or 'end', units by which what was used differs from its cost
-- Outcome 1 {loads}, 0 it was not there.
function verbs.progress(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local id, first, change = next_arg(args), next_arg(args) == 'first', tonumber(next_arg(args))
  local record = read(id)
  if not first then
    -- Not at every end: an id that is remembered longer does no harm.
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

-- expire: drops tickets whose turn was not claimed, gives their load and cost back, and gives the room to the next
-- requests.
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

-- beat: the gateway's lease is renewed for so long; 0: it leaves.
--   lease in ms
-- Outcome 1 {{gateways whose lease is over}, {worker, tokens queued, streams, KV tokens, ...}}
function verbs.beat(keys, args)
  local lease = tonumber(args[11 + tonumber(args[10])])
  if not begin(keys, args) then return {-2, -1, 0} end
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

-- Returns the weights of the tenants that wait, of very many as if all weighed what the first ones do in the mean.
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

-- Follows what other cells have told of a queue, for `lease` ms: TurnBounds of policies/cell_turns.py.
local function keep_in_step(queue, lift, start_max, lease)
  if lift > virtual_time(queue) then call('HSET', queue.meta, 'v', text(lift)) end
  if start_max == '' then
    call('HDEL', queue.meta, 's', 'u')
  else
    call('HSET', queue.meta, 's', start_max, 'u', now + lease)
  end
  queue.virtual_time = nil
end

-- cells: other cells, and other shards that use the same workers, have this on them, and nothing else, from now on.
--   number of workers, workers {worker, tokens queued, streams, KV tokens}, lease in ms of the bounds,
--   bounds of each of the queues {lift, start_max or ''}; -1 in place of all of these: it is only asked what it has
-- Outcome 1 {worker, tokens queued, streams, KV tokens, ...} of this cell and shard alone, {virtual time, weight that waits, ...} of
--   each of the queues
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
    local tokens, streams, kv = load[1] - load[4], load[2] - load[5], load[3] - load[6]
    if count >= 0 and (load[4] ~= others[1] or load[5] ~= others[2] or load[6] ~= others[3]) then
      load[4], load[5], load[6] = others[1], others[2], others[3]
      change_load(worker, tokens + others[1] - load[1], streams + others[2] - load[2], kv + others[3] - load[3])
    end
  end
  if count >= 0 then
    local lease = tonumber(next_arg(args))
    for _, queue in ipairs(queues) do keep_in_step(queue, tonumber(next_arg(args)), next_arg(args), lease) end
    in_step = true
    grant()
  end
  -- With what has just been given.
  local own, progress = {}, {}
  for worker, load in pairs(known_loads) do
    local streams = load[2] - load[5]
    if streams > 0 then
      own[#own + 1], own[#own + 2], own[#own + 3], own[#own + 4] = worker, load[1] - load[4], streams, load[3] - load[6]
    end
  end
  for i, queue in ipairs(queues) do
    progress[2 * i - 1], progress[2 * i] = text((virtual_time(queue))), text(waiting_weight(queue))
  end
  return reply(1, own, progress)
end

-- reap: what a gateway holds whose lease is over is freed.
--   the gateway, ms by which the clock is ahead: 0
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

-- join: a gateway begins, or begins again: it holds these places, and nothing else.
--   lease in ms, id of this call, 1 if it is the first part of several, number of places,
--   places {id, queue, tenant, weight, cost, KV tokens, worker, tokens (0: answering)},
--   number of services, services {queue, tenant, units over weight}: given while Redis was away, added once
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
  call('ZADD', ended, now + ENDED_MS, id)
  for _ = 1, tonumber(next_arg(args)) do
    local queue, tenant, units = queues[next_arg(args)], next_arg(args), tonumber(next_arg(args))
    if queue and not again then correct(queue, {tenant = tenant, weight = 1}, units) end
  end
  if new then call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'gateways', '') end
  grant()
  return reply(1)
end
