-- What is used of a limit, as in policies/windows.py. Times are microseconds since 1970, amounts are units.
--
-- A meter is {used, mark, told}: `told` is until when nobody is told again that much of it is used.
local verbs = {}

local TOLERANCE = 0.000001
local CALENDAR_US = {second = 1000000, minute = 60000000, hour = 3600000000, day = 86400000000}

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Days since 1970 of the first of a month; after Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
local function days_from_civil(year, month)
  if month <= 2 then
    year = year - 1
  end
  local era = math.floor(year / 400)
  local of_era = year - era * 400
  local of_year = math.floor((153 * (month + (month > 2 and -3 or 9)) + 2) / 5)
  return era * 146097 + of_era * 365 + math.floor(of_era / 4) - math.floor(of_era / 100) + of_year - 719468
end

local function civil_from_days(days)
  days = days + 719468
  local era = math.floor(days / 146097)
  local of_era = days - era * 146097
  local years = math.floor(
    (of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524) - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * years + math.floor(years / 4) - math.floor(years / 100))
  local shifted = math.floor((5 * of_year + 2) / 153)
  local month = shifted < 10 and shifted + 3 or shifted - 9
  return years + era * 400 + (month <= 2 and 1 or 0), month
end

-- When this minute, hour, day, week (from Monday) or month of UTC is over.
local function calendar_end(period, now)
  local length = CALENDAR_US[period]
  if length then
    return (math.floor(now / length) + 1) * length
  end
  local today = math.floor(now / CALENDAR_US.day)
  if period == 'week' then
    -- The first day of 1970 was a Thursday.
    return (today + 7 - (today + 3) % 7) * CALENDAR_US.day
  end
  local year, month = civil_from_days(today)
  if month == 12 then
    year, month = year + 1, 0
  end
  return days_from_civil(year, month + 1) * CALENDAR_US.day
end

-- The meter of a limit {name, reset, period, length, amount}, brought up to now.
local function meter_of(key, limit, now)
  local stored = redis.call('HGET', key, limit.name)
  local used, mark, told = 0, 0, 0
  if stored then
    used, mark, told = struct.unpack('<ddd', stored)
  end
  if limit.reset == 'smooth' then
    used = math.max(0, used - math.max(0, now - mark) * limit.amount / limit.length)
    mark = math.max(mark, now)
  elseif now >= mark then
    used = 0
    mark = limit.reset == 'rolling' and 0 or calendar_end(limit.period, now)
  end
  return {used = used, mark = mark, told = told}
end

local function charge(meter, limit, now, cost)
  meter.used = meter.used + cost
  if limit.reset == 'rolling' and meter.mark == 0 then
    meter.mark = now + limit.length
  end
end

-- Microseconds until all of the limit is there again.
local function reset_us(meter, limit, now)
  if limit.reset == 'smooth' then
    return meter.used * limit.length / limit.amount
  end
  return math.max(0, meter.mark - now)
end

local function receipt_of(meter, limit, now)
  return limit.reset == 'smooth' and now + reset_us(meter, limit, now) or meter.mark
end

-- The actual cost in place of the one that was charged; whether anything changed.
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

local function keep(key, limit, meter, now)
  redis.call('HSET', key, limit.name, struct.pack('<ddd', meter.used, meter.mark, meter.told))
  -- What is empty again needs no memory.
  local ms = math.ceil(math.max(reset_us(meter, limit, now), meter.told - now) / 1000) + 1000
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

-- Limits of a call: from args[at] on, eight each.
local function limits_of(keys, args, at)
  local limits = {}
  for first = at, #args, 8 do
    limits[#limits + 1] = {
      key = keys[tonumber(args[first])],
      name = args[first + 1],
      unit = tonumber(args[first + 2]),
      reset = args[first + 3],
      period = args[first + 4],
      length = tonumber(args[first + 5]),
      amount = tonumber(args[first + 6]),
      mode = args[first + 7],
    }
  end
  return limits
end

local function numbers(args, first, count)
  local found = {}
  for at = 1, count do
    found[at] = tonumber(args[first + at - 1])
  end
  return found
end
