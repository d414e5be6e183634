-- What is used of a limit, as in policies/admission/limit_windows.py. Times are microseconds since 1970, amounts are units.
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

-- The meter of a limit {name, reset, period, length, amount} from its stored form, brought up to now.
local function meter_of(stored, limit, now)
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

-- The number after the last limit that follows in the same hash. `where`: the key of each limit.
local function run_end(where, first)
  local after = first + 1
  while where[after] == where[first] do
    after = after + 1
  end
  return after
end

-- The meters of all limits but those of concurrency, by the limit's number.
local function meters_of(limits, where, now)
  local meters, first = {}, 1
  while first <= #limits do
    local after = run_end(where, first)
    if limits[first].unit ~= 0 then
      local names = {}
      for at = first, after - 1 do
        names[#names + 1] = limits[at].name
      end
      local stored = redis.call('HMGET', where[first], unpack(names))
      for at = first, after - 1 do
        meters[at] = meter_of(stored[at - first + 1], limits[at], now)
      end
    end
    first = after
  end
  return meters
end

-- Writes down those meters that are `changed`, by the limit's number.
local function keep(limits, where, meters, changed, now)
  local first = 1
  while first <= #limits do
    local after, key, fields, us = run_end(where, first), where[first], {}, 0
    for at = first, after - 1 do
      if changed[at] then
        local meter = meters[at]
        fields[#fields + 1] = limits[at].name
        fields[#fields + 1] = struct.pack('<ddd', meter.used, meter.mark, meter.told)
        us = math.max(us, reset_us(meter, limits[at], now), meter.told - now)
      end
    end
    if #fields > 0 then
      redis.call('HSET', key, unpack(fields))
      -- What is empty again needs no memory.
      local ms = math.ceil(us / 1000) + 1000
      if redis.call('PTTL', key) < ms then
        redis.call('PEXPIRE', key, ms)
      end
    end
    first = after
  end
end

-- Limits by their text, once read: the same few come again and again. What is forgotten is read again.
local KNOWN_MAX = 10000
local known, known_count = {}, 0

local function limit_of(text)
  local limit = known[text]
  if not limit then
    local unit, reset, period, length, amount, mode, alert_at, name =
      string.match(text, '^(.-)\1(.-)\1(.-)\1(.-)\1(.-)\1(.-)\1(.-)\1(.*)$')
    limit = {
      name = name,
      unit = tonumber(unit),
      reset = reset,
      period = period,
      length = tonumber(length),
      amount = tonumber(amount),
      mode = mode,
      alert_at = tonumber(alert_at),
    }
    if known_count >= KNOWN_MAX then
      known, known_count = {}, 0
    end
    known[text], known_count = limit, known_count + 1
  end
  return limit
end

-- Limits of a call and their keys: from args[first] on the number of a key, and a limit's text.
local function limits_of(keys, args, first)
  local limits, where = {}, {}
  for at = first, #args, 2 do
    where[#where + 1] = keys[tonumber(args[at])]
    limits[#limits + 1] = limit_of(args[at + 1])
  end
  return limits, where
end

-- Windows that are longer lose more in a flush than an hour's use, and are put back (see restore).
local LONG_US = 3600000000

local function is_long(limit)
  return limit.unit ~= 0 and limit.length > LONG_US
end

-- Is a long window among these limits that nobody has put back since Redis lost what it knew?
local function is_lost(restored, limits, where)
  local last
  for at, limit in ipairs(limits) do
    if restored and is_long(limit) and where[at] ~= last then
      last = where[at]
      if redis.call('HEXISTS', restored, last) == 0 then
        return true
      end
    end
  end
  return false
end

-- Was it put back after this millisecond, and so has what had ended by then?
local function is_counted(restored, limit, key, ended_ms)
  local at_ms = restored and is_long(limit) and redis.call('HGET', restored, key)
  return at_ms and tonumber(at_ms) > ended_ms
end

local function numbers(args, first, count)
  local found = {}
  for at = 1, count do
    found[at] = tonumber(args[first + at - 1])
  end
  return found
end
