-- The routes of a request: the workers that may serve it, with what each would have to compute.
--
-- A route is an array, since it is stored with the record of its request. Its entries are those of SharedRoute in
-- gateway/queueing/shared/queue_messages.py:

local WORKER, UNCACHED = 1, 2       -- a worker, and the prompt tokens that it would have to compute
local FIXED_MS, MS_PER_TOKEN = 3, 4 -- what its cost is made of: see cost_of
local SLOTS = 5                     -- requests that its engine runs at a time; 0: not known
local COMPUTED, QUEUED_BEFORE = 6, 7 -- tokens queued when it was ranked: those that FIXED_MS takes off as computed, all

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
  for i, route in ipairs(routes) do workers[i] = route[WORKER] end
  return workers
end

-- Returns the cost of a route in ms, with so many tokens queued at its worker now: tokens_counted of
-- policies/latency_model.py says how many of these count. A record of an earlier version has no entries 6 and 7.
local function cost_of(route, queued)
  local counted = math.max(queued, math.min(queued + (route[COMPUTED] or 0), route[QUEUED_BEFORE] or 0))
  return route[FIXED_MS] + route[MS_PER_TOKEN] * counted
end
