-- The choice of a worker for one request: the cheapest of its routes that has room.
--
-- One gateway alone does this in _with_room of gateway/dispatch/acquisition/own_turn_placements.py, with the routes
-- ranked again before a request is placed, and with close_enough_to_best of policies/admission/hold.py and
-- ClosedWorkers of closed_workers.py beside it. has_room, choices and apply_rules are in dispatch_windows.lua, cost_of
-- is in routes.lua, read_loads in loads.lua; the variables of a call are in call.lua.

-- As in policies/admission/hold.py: a saving of fewer milliseconds is not worth a wait.
local HOLD_MS = 10

-- Returns whether earlier requests wait for a worker, so that a request may not take it.
local function is_closed(worker, closed, crowds)
  local closed_to = closed[worker]
  return closed_to == 'all' or closed_to == 'crowding' and crowds
end

-- Closes the workers that a request waits for to later requests: to all, or only to those of crowding tenants.
local function close(waits_for, closed, crowds)
  for worker in pairs(waits_for) do
    if closed[worker] ~= 'all' then closed[worker] = crowds and 'crowding' or 'all' end
  end
end

-- Returns what a look at a request has seen that found no worker (see passed_over_requests.lua): the terms of the
-- request, its workers with their loads `tokens`, `own` (not of other cells) and `streams`, and the `slots` that it may
-- take there, those that it `waits_for`, and those with room that were closed to it (`kept_out`).
local function look_in_vain(request, waits_for, kept_out)
  local look = {terms = terms, is_narrow = request.is_narrow, ahead_of_cells = request.ahead_of_cells,
    workers = workers_of(request.routes), tokens = {}, own = {}, streams = {}, slots = {}, waits_for = waits_for, kept_out = kept_out}
  for i, worker in ipairs(look.workers) do
    local load = known_loads[worker]
    look.tokens[i], look.own[i], look.streams[i] = load[QUEUED], load[QUEUED] - load[QUEUED_ELSEWHERE], load[STREAMS]
    look.slots[i] = slots_allowed(request.routes[i], request)
  end
  return look
end

-- Returns the cheapest route of a request (see dispatch_windows.lua) that has room now, costs little enough, and whose
-- worker is not closed. Without one it returns nil and what it has seen, and the workers that the request waits for
-- are closed to later requests.
local function best_route(request)
  read_loads(workers_of(request.routes))
  apply_rules(request)
  local routes, costs, least, found, kept_out = with_slots(choices(request), request), {}, math.huge, nil, {}
  for i, route in ipairs(routes) do
    local queued = known_loads[route[WORKER]][QUEUED]
    local ahead = math.max(queued, seen[route[WORKER]] or queued)
    costs[i] = cost_of(route, ahead)
    if costs[i] < least then least = costs[i] end
    if (not found or costs[i] < costs[found]) and has_room(route, ahead, request) then
      if is_closed(route[WORKER], request.closed, request.crowds) then
        kept_out[#kept_out + 1] = i
      else
        found = i
      end
    end
  end
  -- What close_enough_to_best allows.
  local cost_max = request.hold and least + math.max(math.abs(least) * request.hold, HOLD_MS) or math.huge
  if found and costs[found] <= cost_max then return routes[found] end

  local waits_for, near_kept_out = {}, {}
  for i, route in ipairs(routes) do
    if costs[i] <= cost_max then waits_for[route[WORKER]] = true end
  end
  for _, at in ipairs(kept_out) do
    if costs[at] <= cost_max then near_kept_out[#near_kept_out + 1] = routes[at][WORKER] end
  end
  close(waits_for, request.closed, request.crowds)
  return nil, look_in_vain(request, waits_for, near_kept_out)
end
