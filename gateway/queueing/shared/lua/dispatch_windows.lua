-- The dispatch windows: whether a worker has room for a request, and which workers a request may wait for.
--
-- One gateway alone uses policies/admission for this: fits_window (has_room) and leaves_one_open of window_room.py,
-- hold_while_contended of hold.py, and of DispatchWindow in dispatch_window.py open_beside, is_patient, tokens
-- (window_of), choices, waits_for_slots (with_slots), slots_allowed, is_long and taken_by. Only here a worker counts as idle
-- where all that is ahead is work of other cells: one gateway alone cannot separate that work.
--
-- `known_loads`, `seen` and `in_step` are variables of the call: see call.lua. So is `terms`, the window of this call,
-- with the fields of DispatchWindow: narrow, wide, open, contended, counts_own, and open_tokens and last_open of its
-- `filled`.
--
-- A `request` has these fields, of which the caller of best_route sets the first eight, and apply_rules the others:
--
-- routes          see routes.lua
-- closed          the workers that earlier requests wait for: 'all' or 'crowding' (no tenant that crowds) by worker
-- hold            the share by which a worker may cost more than the best one; nil: any will do
-- is_narrow       the narrow window applies: see narrow_applies
-- background      it is batch work
-- target          the TTFT target of its class in seconds
-- work_share      its tenant's share of the recent work when it came, with it
-- ahead_of_cells  only an idle worker will do, since its turn is too far ahead of other cells or shards; among shards,
--                 only after all have reported their loads, so that the shard furthest behind takes idle workers first
-- crowds          its tenant has more requests waiting while tenants contend, and it is not batch work
-- is_patient      it fills the workers that others leave
-- open            how many tokens are ahead of an open worker at most; nil: it need not leave one open
-- leaves_slots    it may not take the last slots of an engine

-- As in policies/admission: window_room.py, hold.py, recent_work.py and filled_workers.py.
local OPEN_OF_WORKERS, CONTENDED_HOLD = 4, 1
local CROWDING_SHARE, CROWDING_MAX = 0.5, 2
local SPARE_SHARE, OPEN_SPARE_SHARE, NARROW_SHARE_OF_FILLED = 0.1, 0.02, 0.85

-- Returns whether the narrow window applies to a request of a queue. `more_waiting`: its tenant has
-- more requests waiting.
local function narrow_applies(queue, more_waiting) return queue.background or terms.contended and more_waiting end

-- Returns whether tenants that crowd fill the workers that others leave.
local function filled_by_tenants() return terms.contended and terms.open_tokens end

-- Returns whether a request fills the workers that others leave: by the TTFT target of its class or, beside tenants, if
-- its tenant crowds or has more of the recent work than others.
local function is_patient(request)
  if not terms.filled then return false end
  if not terms.open_tokens then return (request.target or 0) >= terms.patient_target end
  return request.is_narrow or request.work_share > (terms.contended and CROWDING_SHARE / CROWDING_MAX or CROWDING_SHARE)
end

-- Returns how many tokens may be ahead of the worker that a request with a long prompt leaves open; nil: it need not.
local function open_beside(request)
  if terms.counts_own or request.is_narrow or request.work_share > CROWDING_SHARE / CROWDING_MAX then
    return terms.open and filled_by_tenants() and terms.wide or terms.open
  end
end

-- Returns by what share a worker may cost more: more than `hold` for a tenant that has no more requests waiting, while
-- others have, and for a request of a class that fills workers (takes_dearer).
local function hold_while_contended(request)
  local takes_dearer = request.is_patient and terms.counts_own or terms.contended and not request.is_narrow
  if request.hold and takes_dearer then return math.max(request.hold, CONTENDED_HOLD) end
  return request.hold
end

-- Sets the fields of a request that follow from the terms.
local function apply_rules(request)
  request.work_share = request.work_share or 0 -- A record of an earlier version has none.
  request.crowds = request.is_narrow and not request.background
  request.is_patient = is_patient(request)
  request.open = open_beside(request)
  request.hold = hold_while_contended(request)
  if request.background then
    request.leaves_slots = terms.counts_own
  else
    request.leaves_slots = request.is_narrow or request.work_share > CROWDING_SHARE
  end
end

-- Returns the routes that a request may wait for: a patient one goes to open workers only if it is short, an urgent one
-- to filled workers only if more of its prompt is cached there. Beside tenants that crowd, short prompts of these go to
-- open workers, and of others all that are no longer than the window. Before a crowd is one, long prompts of a tenant
-- with most of the recent work go to open workers only if more of them is cached there.
local function choices(request)
  local routes, patient = request.routes, request.is_patient
  if not terms.filled or not (patient or terms.contended or terms.counts_own) then return routes end
  local found, least = {}, math.huge
  if terms.open_tokens then
    local longest = patient and terms.open_tokens or terms.wide
    if not terms.contended then
      for _, route in ipairs(routes) do
        if route[WORKER] > terms.last_open then least = math.min(least, route[UNCACHED]) end
      end
      longest = math.max(longest, least - 1)
    end
    for _, route in ipairs(routes) do
      if route[WORKER] > terms.last_open or route[UNCACHED] <= longest then found[#found + 1] = route end
    end
    return #found > 0 and found or routes
  end
  for _, route in ipairs(routes) do
    if route[WORKER] <= terms.last_open then least = math.min(least, route[UNCACHED]) end
  end
  for _, route in ipairs(routes) do
    local may = patient or route[UNCACHED] < least
    if route[WORKER] <= terms.last_open then may = not patient or route[UNCACHED] <= terms.narrow end
    if may then found[#found + 1] = route end
  end
  return #found > 0 and found or routes
end

local function window_of(worker, request)
  if request.is_patient then
    if worker <= terms.last_open then return terms.open_tokens or terms.narrow end
    if request.is_narrow and not terms.open_tokens then return math.floor(NARROW_SHARE_OF_FILLED * terms.filled) end
    return terms.filled
  end
  return request.is_narrow and terms.narrow or terms.wide
end

-- Returns how many tokens a prompt takes of the window itself.
local function taken_by(uncached, request)
  if filled_by_tenants() and (request.is_patient or uncached > terms.wide) then return 1 end
  return (request.is_narrow or terms.counts_own) and uncached or math.max(1, uncached - terms.wide)
end

-- Returns whether a prompt is so long that it has to leave another worker open. `window`: that of the worker for it.
local function is_long(uncached, window)
  return uncached > (terms.counts_own and window or math.max(window, terms.wide))
end

-- Returns whether another worker is open when an idle one takes a long prompt.
local function leaves_one_open(request)
  local count, routes = 0, request.routes
  for _, route in ipairs(routes) do
    if known_loads[route[WORKER]][QUEUED] <= request.open then count = count + 1 end
  end
  return #routes == 1 or count > 1 or #routes < OPEN_OF_WORKERS and not request.background
end

-- Returns how many slots of a route's worker a request may take. Some requests have to leave a share of all slots, and
-- those of patient classes a few of an open worker (keeps_for_urgent). For others slots are not looked at: the engine
-- itself lets them wait.
local function slots_allowed(route, request)
  local slots, share = route[SLOTS], 0
  if request.leaves_slots then
    share = SPARE_SHARE
  elseif request.is_patient and terms.counts_own and route[WORKER] <= terms.last_open then
    share = OPEN_SPARE_SHARE
  end
  if share == 0 or not slots or slots == 0 then return math.huge end
  return math.max(1, slots - math.ceil(share * slots))
end

local function has_slot(route, request)
  return known_loads[route[WORKER]][STREAMS] < slots_allowed(route, request)
end

-- Returns the routes without those to a worker that has no slot for a request of a patient class. Such a request would
-- wait for the open worker, the cheapest, until an answer ends there, while a filled worker has a slot and space.
local function with_slots(routes, request)
  if not (request.is_patient and terms.counts_own) then return routes end
  local found = {}
  for _, route in ipairs(routes) do
    if has_slot(route, request) then found[#found + 1] = route end
  end
  return #found > 0 and found or routes
end

-- Returns whether a worker has room for a request now. `ahead`: the tokens queued there, as far as anything is known.
local function has_room(route, ahead, request)
  local load, window, uncached = known_loads[route[WORKER]], window_of(route[WORKER], request), route[UNCACHED]
  if request.ahead_of_cells then
    if ahead ~= 0 or terms.divided and not in_step then return false end
  elseif ahead ~= 0 and ahead + taken_by(uncached, request) > window
    -- Work of other cells might keep a worker busy for ever: where nothing else is ahead, it counts as idle.
    and (terms.divided or ahead ~= load[QUEUED_ELSEWHERE]) then
    return false
  end
  if request.open and is_long(uncached, window) and not leaves_one_open(request) then return false end
  return has_slot(route, request)
end
