-- Returns whether so many leases of this cost fit every limit that refuses requests, or would refuse them.
local function all_fit(layout, meters, running, cost, count)
  for at, limit in ipairs(layout.limits) do
    local used = limit.unit == CONCURRENCY and running[at] + count or meters[at].used + count * cost[limit.unit]
    if used > limit.amount and limit.mode ~= 'soft' then
      return false
    end
  end
  return true
end

-- Returns what a lease of this cost is charged where every limit counts it, without receipts.
local function charges_of(layout, cost)
  local charges = {}
  for at, limit in ipairs(layout.limits) do
    charges[2 * at - 1], charges[2 * at] = limit.unit == CONCURRENCY and 1 or cost[limit.unit], 0
  end
  return charges
end

-- Settles leases, and then reserves others ahead of requests, all of the same scopes and none under a client's own key.
--
-- keys  as for reserve, with any of the leases in the first place; then the leases that ended; then the new ones
-- args  1: lease ms, and ms for which ends are remembered  2: number of leases that ended  3: of new ones
--       4: number of the key of restore, as for reserve  5: the limits, packed as for reserve
--       6: cost of each new lease, packed; then of each lease that ended its id, its reserved cost and the actual cost,
--       packed; then the ids of the new ones
-- Returns {how many of the new ones were granted: the first, server time in ms, 1 if the next one was refused, number of
--        alerts, limit, whole units used of it, ..., remaining of limit 1, its reset in us, ...}
--
-- A new lease is refused, and all that follow it, also where a shadow limit would have refused it, and where the usage
-- of long windows is lost.
verbs.settle_and_reserve = function(keys, args)
  local now = now_us()
  local now_ms, lease_ms = math.floor(now / 1000), tonumber(args[1])
  local ended, new = tonumber(args[2]), tonumber(args[3])
  local layout, cost = layout_of(args[5]), cost_of(args[6])
  local first = #keys - ended - new
  local stored = redis.call('MGET', unpack(keys, first + 1))
  local meters, changed, alerts = meters_of(layout, keys, now), {}, {}

  -- Settle the leases that ended. Most were reserved for the same cost, which is unpacked once.
  local gone, ending, packed = {}, {settles = true, age_ms = 0, cost = cost}, args[6]
  for number = 1, ended do
    local at = 3 * number + 4
    local id, lease = args[at], lease_from(stored[number])
    if not lease or (lease.owner == id and lease.ends ~= 0) then
      if args[at + 1] ~= packed then
        ending.cost, packed = cost_of(args[at + 1]), args[at + 1]
      end
      ending.lease, ending.total = lease, cost_of(args[at + 2])
      end_charges(layout, keys, meters, changed, alerts, now, ending)
      write_ended(keys[first + number], id, lease_ms)
      gone[#gone + 1] = id
    end
  end
  for _, limit in ipairs(layout.limits) do
    if limit.unit == CONCURRENCY and #gone > 0 then
      redis.call('ZREM', keys[limit.key], unpack(gone))
    end
  end

  -- Grant the new leases until one is refused. Where all of them fit, each is charged the same, without a decision.
  local running = running_of(layout, keys, now_ms)
  local granted, added, was_idle = 0, {}, {}
  local refused = new > 0 and is_lost(keys[tonumber(args[4])], layout, keys)
  for at, running_leases in pairs(running) do
    was_idle[at] = running_leases == 0
  end
  local charges = all_fit(layout, meters, running, cost, new) and charges_of(layout, cost) or nil
  local new_lease = {ends = now_ms + lease_ms, fingerprint = '', attempt = 1, charges = charges}
  while granted < new and not refused do
    local number = ended + granted + 1
    local id, lease = args[6 + 3 * ended + granted + 1], lease_from(stored[number])
    if lease then
      -- This call is made a second time, or the lease was given back meanwhile.
      refused = lease.owner ~= id or lease.ends == 0
    else
      if not charges then
        local worst, _, its_charges, shadowed = judge(layout, meters, running, cost, now)
        refused, new_lease.charges = worst > 0 or #shadowed > 0, its_charges
      end
      if not refused then
        take(layout, meters, running, new_lease.charges, changed, now)
        new_lease.owner = id
        write_lease(keys[first + number], new_lease, lease_ms)
        added[#added + 1] = id
      end
    end
    granted = granted + (refused and 0 or 1)
  end
  for at, limit in ipairs(layout.limits) do
    if limit.unit == CONCURRENCY and #added > 0 then
      run(keys[limit.key], added, lease_ms, now, was_idle[at])
    end
  end
  write_meters(layout, keys, meters, changed, now)

  -- Answer, with the alerts that are due and the state of each limit.
  local answer = {granted, now_ms, refused and 1 or 0, #alerts / 2}
  for _, value in ipairs(alerts) do
    answer[#answer + 1] = value
  end
  add_statuses(answer, layout, meters, running, now)
  return answer
end
