-- The meters of limits in Redis: which hash has which, how they are read and written, and how long they are kept.
-- windows.lua has what a meter is.

-- Limits of calls and their keys, by the packed text in which calls have them: the same few recur.
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
