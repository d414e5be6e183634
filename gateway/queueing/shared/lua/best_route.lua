-- The choice of a worker for one request: its windows, and the cheapest route that has room.
--
-- One gateway alone does this in _with_room of gateway/dispatch/acquisition/own_turn_placements.py. It uses from
-- policies/admission/dispatch_window.py: leaves_one_open, hold_while_contended, fits_window, close_enough_to_best,
-- ClosedWorkers, the constants, and of DispatchWindow tokens (window_of here), choices and leaves_slots. There the
-- routes are ranked anew before a request is placed. And only here a worker counts as idle where all that is ahead is
-- work of other cells: one gateway alone cannot tell that work apart.
--
-- `terms`, `seen` and `in_step` are variables of the call (call.lua); loads.lua fills `known_loads`.
--
-- A route is {worker, uncached tokens, fixed ms, ms per queued token, slots of the engine or 0, and of the tokens
-- queued when it was ranked: those that fixed ms takes off as computed, all}.

-- As in policies/admission/dispatch_window.py.
local HOLD_MS, CONTENDED_HOLD, OPEN_OF_WORKERS = 10, 1, 4
-- As in policies/admission/traffic_in_sight.py and recent_work.py.
local CROWDING_SHARE, CROWDING_MAX = 0.5, 2
-- As in policies/admission/filled_workers.py.
local SPARE_SHARE = 0.1

-- Reads routes from the arguments of a call.
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

local function workers_of(routes)
  local workers = {}
  for i, route in ipairs(routes) do workers[i] = route[1] end
  return workers
end

-- Returns whether the narrow window applies to a request of a queue. `crowds`: its tenant has more requests waiting.
local function narrow_applies(queue, crowds) return queue.background or terms.contended and crowds end

-- Returns whether another of these workers is open when an idle one takes a prompt that is longer than its window.
local function leaves_one_open(routes, background)
  local count = 0
  for _, route in ipairs(routes) do
    if known_loads[route[1]][1] <= terms.open then count = count + 1 end
  end
  return #routes == 1 or count > 1 or #routes < OPEN_OF_WORKERS and not background
end

-- Returns whether tenants that crowd fill the workers that others leave.
local function filled_by_tenants() return terms.contended and terms.open_tokens end

-- Returns how many tokens are ahead of an open worker at most; nil for a request that need not leave one open.
local function open_beside(is_narrow, work_share)
  if filled_by_tenants() then return end
  if terms.counts_own or is_narrow or work_share > CROWDING_SHARE / CROWDING_MAX then return terms.open end
end

-- Returns by what share a worker may cost more for a tenant that has only one request waiting, while others have more.
local function hold_while_contended(hold) return hold and math.max(hold, CONTENDED_HOLD) end

-- Returns whether a request fills the workers that others leave: by the TTFT target of its class or, beside tenants, if
-- its tenant crowds (`is_narrow`) or has more of the recent work than others.
local function is_patient(target, is_narrow, work_share)
  if not terms.filled then return false end
  if not terms.open_tokens then return (target or 0) >= terms.patient_target end
  return is_narrow or work_share > (terms.contended and CROWDING_SHARE / CROWDING_MAX or CROWDING_SHARE)
end

-- Returns the window of a worker for a request; a `patient` one fills the workers that others leave.
local function window_of(worker, is_narrow, patient)
  if patient then return worker <= terms.last_open and (terms.open_tokens or terms.narrow) or terms.filled end
  return is_narrow and terms.narrow or terms.wide
end

-- Returns the routes that a request may wait for: a patient one goes to open workers only if it is short, an urgent one
-- to filled workers only if more of its prompt is cached there. Beside tenants that crowd, short prompts of these go to
-- open workers, and of others all that are no longer than the window.
local function choices(routes, patient)
  if not terms.filled or not (terms.contended or terms.counts_own) then return routes end
  local found, least = {}, math.huge
  if terms.open_tokens then
    local longest = patient and terms.open_tokens or terms.wide
    for _, route in ipairs(routes) do
      if route[1] > terms.last_open or route[2] <= longest then found[#found + 1] = route end
    end
    return #found > 0 and found or routes
  end
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

-- Returns whether a request may take one of an engine's slots where it has to leave some free: batch work for other
-- classes; tenants that crowd, or have most of the recent work, for other tenants.
local function leaves_slots(route, streams, background, is_narrow, work_share)
  local slots, has_to = route[5], is_narrow or work_share > CROWDING_SHARE
  if background then has_to = terms.counts_own end
  if not has_to or not slots or slots == 0 then return true end
  return streams < math.max(1, slots - math.ceil(SPARE_SHARE * slots))
end

-- Returns the queued tokens that the cost of a route counts now: tokens_counted of policies/latency_model.py.
local function tokens_counted(route, queued)
  return math.max(queued, math.min(queued + (route[6] or 0), route[7] or 0))
end

-- Closes the workers that a request waits for to later requests: to all, or only to those of crowding tenants.
local function close(waits_for, closed, crowds)
  for worker in pairs(waits_for) do
    if closed[worker] ~= 'all' then closed[worker] = crowds and 'crowding' or 'all' end
  end
end

-- Returns the cheapest route that has room now, costs little enough, and whose worker is not closed. Without one, the
-- workers that the request waits for are closed to later requests: to all, or only to those of crowding tenants, which
-- have more requests waiting.
--
-- `hold`           the share by which a worker may cost more than the best one; nil: any will do
-- `is_narrow`      the narrow window applies
-- `background`     it is batch work
-- `target`         the TTFT target of its class in seconds
-- `work_share`     its tenant's share of the recent work before it came
-- `ahead_of_cells` only an idle worker will do, since its turn is too far ahead of other cells or shards; among shards,
--                  only after all have reported their loads, so that the shard furthest behind takes idle workers first
--
-- Without a route it returns nil and what was seen (see passed_over.lua): the terms of the request, its workers with
-- the loads `tokens`, `own` (not of other cells) and `streams`, those that it `waits_for`, and those with room that
-- were closed to it (`kept_out`).
local function best_route(all_routes, closed, hold, is_narrow, background, target, work_share, ahead_of_cells)
  read_loads(workers_of(all_routes))
  local costs, least, found, crowds = {}, math.huge, nil, is_narrow and not background
  work_share = work_share or 0 -- A record of an earlier version has none.
  local open = open_beside(is_narrow, work_share)
  local kept_out = {}
  local patient = is_patient(target, is_narrow, work_share)
  local routes = choices(all_routes, patient)
  if (terms.contended or patient and terms.counts_own) and not is_narrow then hold = hold_while_contended(hold) end
  for i, route in ipairs(routes) do
    local load, window = known_loads[route[1]], window_of(route[1], is_narrow, patient)
    local ahead = math.max(load[1], seen[route[1]] or load[1])
    -- As fits_window: an idle worker takes any prompt. So does one where all that is ahead is work of other cells,
    -- which might keep it busy for ever.
    local taken = (is_narrow or terms.counts_own or route[2] > terms.wide) and route[2] or 1
    if filled_by_tenants() and (patient or route[2] > terms.wide) then taken = 1 end
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
    by_streams = background or is_narrow or work_share > CROWDING_SHARE, tokens = {}, own = {}, streams = {},
    waits_for = {}, kept_out = {}}
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
