-- What reserving and settling do to the meters of all limits of a call: `judge` refuses, `take` charges, `end_charges`
-- settles, `add_statuses` adds what is left. A meter is the usage of one limit: windows.lua.

-- Charges a meter with `more`, which a lease has used beyond its reservation and whose record is gone. Usage that was put
-- back after a loss of data has it already. Returns whether it was charged.
local function charge_late(key, limit, meter, more, now, ending)
  if more <= 0 or (ending.age_ms > 0
    and is_counted(ending.restored, limit, key, math.floor(now / 1000) - ending.age_ms)) then
    return false
  end
  charge(meter, limit, now, more)
  return true
end

-- Adds the number of a limit and its usage to `alerts`, if so much is used that an alert is due. Returns whether it is.
local function alert_if_due(at, limit, meter, alerts, now)
  if limit.alert_at <= 0 or meter.used < limit.alert_at or meter.alerted_until > now then
    return false
  end
  meter.alerted_until = limit.reset == 'smooth' and now + limit.length or meter.mark
  alerts[#alerts + 1] = at
  alerts[#alerts + 1] = math.floor(meter.used + 0.5)
  return true
end

-- Replaces what a lease was charged by the actual cost, in every limit but those of concurrency.
--
-- `ending` says which lease ends, and how:
--   lease     the stored record (lease_records.lua); nil if it is gone
--   number    of the lease in this record
--   reserved  cost by unit that was reserved
--   actual    cost by unit that is charged in its place
--   settles   whether the lease is settled; else it is released
--   restored  key with the times at which long windows were put back after a loss of data (restore.lua); nil for none
--   age_ms    ms since the lease ended
-- A receipt shows whether what was charged still counts in the meter: when the window ends in which it was charged or,
-- of a smooth limit, when it will have drained.
--
-- In `lease.charges` limit number `at` has two places: 2 * at - 1 what it was charged, 2 * at the receipt.
--
-- Marks the meters that are `changed`, and adds the number and the usage of limits that are due to `alerts`.
local function end_charges(layout, keys, meters, changed, alerts, now, ending)
  local lease, actual, settles, limits = ending.lease, ending.actual, ending.settles, layout.limits
  for at = 1, #limits do
    local limit = limits[at]
    local charged = lease and lease.charges[2 * at - 1]
    if limit.unit ~= 0 and charged ~= -1 then
      local meter = meters[at]
      if charged then
        local receipt = receipt_in(limit, charged, lease.charges[2 * at], ending.number)
        changed[at] = settle(meter, limit, now, charged, actual[limit.unit], receipt) or changed[at]
      elseif settles then
        local more = actual[limit.unit] - ending.reserved[limit.unit]
        changed[at] = charge_late(keys[limit.key], limit, meter, more, now, ending) or changed[at]
      end
      if settles then
        changed[at] = alert_if_due(at, limit, meter, alerts, now) or changed[at]
      end
    end
  end
end

-- Decides whether a cost fits every limit, those of the organisation, the tenant and the key together. Of a limit of
-- concurrency fewer leases must be running than its amount; of others the meter must stay within the amount.
--
-- Returns the limit that would refuse it for longest (0: none), how long in us (-1: for ever), the charges of a lease
-- of this cost, without receipts, and the shadow limits that would have refused it. A shadow limit that would have
-- refused it charges nothing for this lease: its charge is -1, here and in end_charges and take.
local function judge(layout, meters, running, cost, now)
  local worst, worst_wait, charges, shadowed = 0, 0, {}, {}
  for at, limit in ipairs(layout.limits) do
    local fits, wait, charged = true, 0, 1
    if limit.unit == CONCURRENCY then
      fits, wait = running[at] < limit.amount, 1000000
    else
      local meter = meters[at]
      charged = cost[limit.unit]
      local excess = meter.used + charged - limit.amount
      fits = excess <= TOLERANCE
      if charged > limit.amount then
        wait = -1
      elseif limit.reset == 'smooth' then
        wait = excess * limit.length / limit.amount
      else
        wait = meter.mark - now
      end
    end
    if not fits then
      if limit.mode == 'shadow' then
        shadowed[#shadowed + 1] = at
        charged = -1
      elseif limit.mode == 'enforce' and (worst == 0 or (worst_wait >= 0 and (wait < 0 or wait > worst_wait))) then
        worst, worst_wait = at, wait
      end
    end
    charges[2 * at - 1], charges[2 * at] = charged, 0
  end
  return worst, worst_wait, charges, shadowed
end

-- Charges the meters and the numbers of running leases for so many leases, and writes the receipts of the first beside
-- the charges.
local function take(layout, meters, running, charges, changed, now, count)
  local limits = layout.limits
  for at = 1, #limits do
    local limit = limits[at]
    local charged = charges[2 * at - 1]
    if limit.unit == CONCURRENCY then
      running[at] = charged > 0 and running[at] + count * charged or running[at]
    elseif charged >= 0 then
      charge(meters[at], limit, now, charged)
      charges[2 * at] = receipt_of(meters[at], limit, now)
      charge(meters[at], limit, now, (count - 1) * charged)
      changed[at] = true
    end
  end
end

-- Returns the numbers of running leases by the limit's number, of limits of concurrency. Leases that have not been
-- renewed, as those of a crashed gateway, run no more.
local function running_of(layout, keys, now_ms)
  local running = {}
  for at, limit in ipairs(layout.limits) do
    if limit.unit == CONCURRENCY then
      running[at] = redis.call('ZCOUNT', keys[limit.key], '(' .. now_ms, '+inf')
    end
  end
  return running
end

-- Adds leases to the running ones of a limit of concurrency. `is_first`: none ran before.
local function run(key, ids, lease_ms, now, is_first)
  local now_ms, members = math.floor(now / 1000), {}
  for number, id in ipairs(ids) do
    members[2 * number - 1], members[2 * number] = now_ms + lease_ms, id
  end
  redis.call('ZADD', key, unpack(members))
  if keep_key(key, lease_ms, now, is_first) then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
  end
end

-- Adds to the answer what remains of each limit, and the us until it is fully available again.
local function add_statuses(answer, layout, meters, running, now)
  for at, limit in ipairs(layout.limits) do
    local left = limit.amount - (running[at] or meters[at].used)
    answer[#answer + 1] = math.max(0, math.floor(left + TOLERANCE))
    answer[#answer + 1] = running[at] and 0 or math.ceil(reset_us(meters[at], limit, now))
  end
end
