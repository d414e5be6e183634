-- Usage of limits in windows, as in policies/admission/limit_windows.py. Times are microseconds since 1970, amounts
-- are units of the limit.
--
-- A meter is {used, mark, alerted_until}: `used` units; `mark`, for a smooth limit the time at which that much was used,
-- for others the end of the window (0: no window has begun); and the time until which no further alert is sent.
local verbs = {}

local TOLERANCE = 0.000001
local CONCURRENCY = 0 -- the unit of limits of requests that run at the same time

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Returns the meter of a limit from its stored form, as it is now: drained, or of a new window where the old one is
-- over. Here a budget begins again.
local function meter_of(stored, limit, now)
  local used, mark, alerted_until = 0, 0, 0
  if stored then
    used, mark, alerted_until = struct.unpack('<ddd', stored)
  end
  if limit.reset == 'smooth' then
    used = math.max(0, used - math.max(0, now - mark) * limit.amount / limit.length)
    mark = math.max(mark, now)
  elseif now >= mark then
    used = 0
    mark = limit.reset == 'rolling' and 0 or calendar_end(limit.period, now)
  end
  return {used = used, mark = mark, alerted_until = alerted_until}
end

local function charge(meter, limit, now, cost)
  meter.used = meter.used + cost
  if limit.reset == 'rolling' and meter.mark == 0 then
    meter.mark = now + limit.length
  end
end

-- Returns the microseconds until the limit is fully available again.
local function reset_us(meter, limit, now)
  if limit.reset == 'smooth' then
    return meter.used * limit.length / limit.amount
  end
  return math.max(0, meter.mark - now)
end

-- Returns until when what was just charged counts in the meter: the end of its window, or when it will have drained.
local function receipt_of(meter, limit, now)
  return limit.reset == 'smooth' and now + reset_us(meter, limit, now) or meter.mark
end

-- Returns the receipt of a lease from that of the first one in its record: all were charged the same, one after another.
local function receipt_in(limit, charged, first, number)
  if limit.reset ~= 'smooth' or number < 2 then
    return first
  end
  return first + (number - 1) * charged * limit.length / limit.amount
end

-- Replaces the charged cost by the actual one, and returns whether anything changed. A window that has ended is not
-- corrected; of a smooth limit, only what has not drained yet is given back.
local function settle(meter, limit, now, charged, actual, receipt)
  local change = actual - charged
  if limit.reset == 'smooth' then
    if change < 0 then
      local left = math.min(math.max(0, (receipt - now) * limit.amount / limit.length), charged)
      change = -math.min(-change, left)
    end
  elseif meter.mark ~= receipt then
    return false
  end
  meter.used = math.max(0, meter.used + change)
  return true
end

-- Returns a cost by unit, from its packed form.
local function cost_of(packed)
  local requests, uncached, cached, output, total, spend = struct.unpack('<dddddd', packed)
  return {requests, uncached, cached, output, total, spend}
end
