-- Puts back the usage of long windows from the ledger, once, or again.
--
-- keys  1: hash: key of meters -> ms at which their long windows were put back, or were whole  2: these meters
-- args  1: ms for which that is remembered  2: 1 to do it again where it was done before
--       3: the limits, packed as for reserve; then for every limit its usage, and when its window ends in us (0: of a
--       smooth one)
-- Returns 1; 0 if it was done before, or if no less is known here; -1 if a window of the calendar has ended
-- meanwhile: nothing is done.
--
-- The first gateway to call does it. Charges since the loss are in the ledger as well, or will be: the larger of the
-- two counts, never both.
verbs.restore = function(keys, args)
  local now = now_us()
  if args[2] == '0' and redis.call('HEXISTS', keys[1], keys[2]) == 1 then
    return 0
  end
  local layout, used, marks = layout_of(args[3]), {}, {}
  for at = 4, #args, 2 do
    used[#used + 1] = tonumber(args[at])
    marks[#marks + 1] = tonumber(args[at + 1])
  end
  local meters, changed = meters_of(layout, keys, now), {}
  for at, limit in ipairs(layout.limits) do
    if limit.reset == 'calendar' and meters[at].mark ~= marks[at] then
      return -1
    end
  end
  for at, limit in ipairs(layout.limits) do
    local meter = meters[at]
    if used[at] > meter.used and (limit.reset == 'smooth' or marks[at] > now) then
      meter.used = used[at]
      if limit.reset == 'rolling' then
        meter.mark = marks[at]
      end
      changed[at] = true
    end
  end
  write_meters(layout, keys, meters, changed, now)
  redis.call('HSET', keys[1], keys[2], math.floor(now / 1000))
  redis.call('PEXPIRE', keys[1], tonumber(args[1]))
  return next(changed) and 1 or 0
end
