-- Ends of the windows of the calendar in UTC. Times are microseconds since 1970.
local CALENDAR_US = {second = 1000000, minute = 60000000, hour = 3600000000, day = 86400000000}

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
