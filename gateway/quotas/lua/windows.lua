-- Usage of limits in windows, as in policies/admission/limit_windows.py. Times are microseconds since 1970, amounts
-- are units of the limit.
--
-- A meter is {used, mark, alerted_until}: `used` units; `mark`, for a smooth limit the time at which that much was used,
-- for others the end of the window (0: no window has begun); and the time until which no further alert is sent.
local verbs = {}

local TOLERANCE = 0.000001
local CONCURRENCY = 0 -- the unit of limits of requests that run at the same time
local CALENDAR_US = {second = 1000000, minute = 60000000, hour = 3600000000, day = 86400000000}

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Returns the days since 1970 of the first day of a month; after Howard Hinnant, "chrono-Compatible Low-Level Date
-- Algorithms".
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

-- Returns when this minute, hour, day, week (from Monday) or month of UTC is over.
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

-- Returns the meter of a limit from its stored form, as it is now: drained, or of a new window where the old one is
-- over. Here a budget begins anew.
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

-- Limits of calls and their keys, by the packed text in which calls have them: the same few come again and again.
-- Forgotten ones are read again. A layout is {limits, groups}; a group has the limits whose meters are in one hash.
local LAYOUTS_MAX = 10000
local layouts, layout_count = {}, 0

-- A window that is longer loses more than an hour's usage in a flush, and is put back (see restore).
local LONG_US = 3600000000

local function new_layout(packed)
  local limits, groups, group_of = {}, {}, {}
  for at, fields in ipairs(cmsgpack.unpack(packed)) do
    local limit = {
      key = fields[1],
      unit = fields[2],
      reset = fields[3],
      period = fields[4],
      length = fields[5],
      amount = fields[6],
      mode = fields[7],
      alert_at = fields[8],
      name = fields[9],
    }
    limit.is_long = limit.unit ~= 0 and limit.length > LONG_US
    limits[at] = limit
    if limit.unit ~= 0 then
      local group = group_of[limit.key]
      if not group then
        group = {key = limit.key, numbers = {}, names = {}, is_long = false}
        group_of[limit.key], groups[#groups + 1] = group, group
      end
      group.numbers[#group.numbers + 1], group.names[#group.names + 1] = at, limit.name
      group.is_long = group.is_long or limit.is_long
    end
  end
  return {limits = limits, groups = groups}
end

local function layout_of(packed)
  local layout = layouts[packed]
  if not layout then
    if layout_count >= LAYOUTS_MAX then
      layouts, layout_count = {}, 0
    end
    layout = new_layout(packed)
    layouts[packed], layout_count = layout, layout_count + 1
  end
  return layout
end

-- Returns the meters of all limits except those of concurrency, by the limit's number.
local function meters_of(layout, keys, now)
  local meters = {}
  for _, group in ipairs(layout.groups) do
    local stored = redis.call('HMGET', keys[group.key], unpack(group.names))
    for place, at in ipairs(group.numbers) do
      meters[at] = meter_of(stored[place], layout.limits[at], now)
    end
  end
  return meters
end

-- The times in ms until which keys are kept, as last seen here, so that not every call asks for them.
local KEPT_MAX = 10000
local kept_until, kept_count = {}, 0

-- Keeps a key for so many ms at least. `is_new`: the key may have been made by this call, whatever was seen before.
-- Returns whether the server was asked: for a key in steady use about once per second.
local function keep_key(key, ms, now, is_new)
  local now_ms = math.floor(now / 1000)
  local known = kept_until[key]
  if known and known >= now_ms + ms and not is_new then
    return false
  end
  local left = redis.call('PTTL', key)
  if left < ms then
    left = ms + 1000
    redis.call('PEXPIRE', key, left)
  end
  if not known then
    if kept_count >= KEPT_MAX then
      kept_until, kept_count = {}, 0
    end
    kept_count = kept_count + 1
  end
  kept_until[key] = now_ms + left
  return true
end

-- Writes the meters that are `changed`, by the limit's number. A hash is kept until all of its limits are fully
-- available again.
local function write_meters(layout, keys, meters, changed, now)
  for _, group in ipairs(layout.groups) do
    local key, fields, us = keys[group.key], {}, 0
    for _, at in ipairs(group.numbers) do
      if changed[at] then
        local meter, limit = meters[at], layout.limits[at]
        fields[#fields + 1] = limit.name
        fields[#fields + 1] = struct.pack('<ddd', meter.used, meter.mark, meter.alerted_until)
        us = math.max(us, reset_us(meter, limit, now), meter.alerted_until - now)
      end
    end
    if #fields > 0 then
      local added = redis.call('HSET', key, unpack(fields))
      keep_key(key, math.ceil(us / 1000), now, added > 0)
    end
  end
end

-- Returns whether a long window of these limits was not put back since Redis lost its data. `restored`: the key of
-- restore, nil for none.
local function is_lost(restored, layout, keys)
  for _, group in ipairs(layout.groups) do
    if restored and group.is_long and redis.call('HEXISTS', restored, keys[group.key]) == 0 then
      return true
    end
  end
  return false
end

-- Returns whether the limit's hash was put back after this millisecond: usage that had ended by then is in it.
local function is_counted(restored, limit, key, ended_ms)
  local at_ms = restored and limit.is_long and redis.call('HGET', restored, key)
  return at_ms and tonumber(at_ms) > ended_ms
end

-- Returns a cost by unit, from its packed form.
local function cost_of(packed)
  local requests, uncached, cached, output, total, spend = struct.unpack('<dddddd', packed)
  return {requests, uncached, cached, output, total, spend}
end
