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

-- Charges up to `wanted` leases of this cost, until one is refused. Returns how many, and what each was charged, with
-- the receipts of the first.
local function take_fitting(layout, meters, running, cost, wanted, changed, now)
  if all_fit(layout, meters, running, cost, wanted) then
    local charges = charges_of(layout, cost)
    take(layout, meters, running, charges, changed, now, wanted)
    return wanted, charges
  end
  local taken, first = 0, nil
  while taken < wanted do
    local worst, _, charges, shadowed = judge(layout, meters, running, cost, now)
    if worst > 0 or #shadowed > 0 then
      break
    end
    take(layout, meters, running, charges, changed, now, 1)
    taken, first = taken + 1, first or charges
  end
  return taken, first
end

-- Settles leases, and then reserves others ahead of requests, all of the same scopes and none under a client's own key.
--
-- keys  as for reserve, with any record in the first place; then the records of leases that ended; then the new ones
-- args  1: lease ms, and ms for which ends are remembered  2: number of records with leases that ended  3: of new ones
--       4: number of the key of restore, as for reserve  5: the limits, packed as for reserve
--       6: cost of each new lease, packed; then of each record with leases that ended its owner, their reserved cost,
--       packed, how many they are, and of each its number and the actual cost, packed; then of each new record its
--       owner, and how many leases it is to have: 0 for the single lease of one reservation
-- Returns {how many of the new ones were granted: the first, server time in ms, 1 if the next one was refused, number of
--        alerts, limit, whole units used of it, ..., remaining of limit 1, its reset in us, ...}
--
-- A new lease is refused, and all that follow it, also where a shadow limit would have refused it, and where the usage
-- of long windows is lost.
verbs.settle_and_reserve = function(keys, args)
  local now = now_us()
  local now_ms, lease_ms = math.floor(now / 1000), tonumber(args[1])
  local ended, new = tonumber(args[2]), tonumber(args[3])
  local layout, cost, at_arg = layout_of(args[5]), cost_of(args[6]), 7
  local first = #keys - ended - new
  local stored = redis.call('MGET', unpack(keys, first + 1))
  local meters, changed, alerts = meters_of(layout, keys, now), {}, {}

  -- Settle the leases that ended.
  local gone = {}
  for place = 1, ended do
    local owner, reserved, count = args[at_arg], cost_of(args[at_arg + 1]), tonumber(args[at_arg + 2])
    local known, number = lease_from(stored[place]), tonumber(args[at_arg + 3])
    local record, gone_before = known or unknown_lease(owner, now_ms + lease_ms, '', number), #gone
    local ending = {lease = known, reserved = reserved, settles = true, age_ms = 0}
    at_arg = at_arg + 3
    for _ = 1, count do
      number = tonumber(args[at_arg])
      if record.owner == owner and not has_ended(record, number) then
        ending.number, ending.actual = number, cost_of(args[at_arg + 1])
        end_charges(layout, keys, meters, changed, alerts, now, ending)
        mark_ended(record, number)
        gone[#gone + 1] = member_of(owner, number)
      end
      at_arg = at_arg + 2
    end
    if #gone > gone_before then
      write_lease(keys[first + place], record, lease_ms)
    end
  end
  for _, limit in ipairs(layout.limits) do
    if limit.unit == CONCURRENCY and #gone > 0 then
      redis.call('ZREM', keys[limit.key], unpack(gone))
    end
  end

  -- Grant the new leases until one is refused.
  local running = running_of(layout, keys, now_ms)
  local granted, added, was_idle = 0, {}, {}
  local refused = new > 0 and is_lost(keys[tonumber(args[4])], layout, keys)
  for at, running_leases in pairs(running) do
    was_idle[at] = running_leases == 0
  end
  for place = 1, new do
    local owner, wanted = args[at_arg], tonumber(args[at_arg + 1])
    local record, taken, charges = lease_from(stored[ended + place]), 0, nil
    local count = math.max(1, wanted)
    at_arg = at_arg + 2
    if refused then
      break
    elseif record then
      -- This call is made a second time, or a lease was given back before it.
      taken = record.owner == owner and record.ends ~= 0 and (record.count or 1) or 0
    else
      taken, charges = take_fitting(layout, meters, running, cost, count, changed, now)
    end
    if charges then
      write_lease(keys[first + ended + place], {
        owner = owner,
        ends = now_ms + lease_ms,
        fingerprint = '',
        attempt = 1,
        charges = charges,
        count = wanted > 0 and taken or nil,
        ended = wanted > 0 and {} or nil,
      }, lease_ms)
      for number = 1, taken do
        added[#added + 1] = member_of(owner, wanted > 0 and number or 0)
      end
    end
    granted, refused = granted + taken, taken < count
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
