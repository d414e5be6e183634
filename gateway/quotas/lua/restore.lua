-- Puts back what was used in long windows, from the ledger, once.
--
-- keys  1: hash: key of meters -> ms at which their long windows were put back, or were whole  2: these meters
-- args  1: ms for which that is known; then for every limit its text, what is used, and when its window ends in us
--       (0: of a smooth one)
-- Gives 1; 0 if it was done before, or if no less is known here; -1 if a window of the calendar has ended meanwhile: nothing is done.
--
-- Whoever comes first does it. What was charged since the loss is in the ledger as well, or will be: the larger of
-- the two counts, never both.
verbs.restore = function(keys, args)
  local now = now_us()
  if redis.call('HEXISTS', keys[1], keys[2]) == 1 then
    return 0
  end
  local limits, where, used, marks = {}, {}, {}, {}
  for at = 2, #args, 3 do
    limits[#limits + 1] = limit_of(args[at])
    where[#where + 1] = keys[2]
    used[#used + 1] = tonumber(args[at + 1])
    marks[#marks + 1] = tonumber(args[at + 2])
  end
  local meters, changed = meters_of(limits, where, now), {}
  for at, limit in ipairs(limits) do
    if limit.reset == 'calendar' and meters[at].mark ~= marks[at] then
      return -1
    end
  end
  for at, limit in ipairs(limits) do
    local meter = meters[at]
    if used[at] > meter.used and (limit.reset == 'smooth' or marks[at] > now) then
      meter.used = used[at]
      if limit.reset == 'rolling' then
        meter.mark = marks[at]
      end
      changed[at] = true
    end
  end
  keep(limits, where, meters, changed, now)
  redis.call('HSET', keys[1], keys[2], math.floor(now / 1000))
  redis.call('PEXPIRE', keys[1], tonumber(args[1]))
  return next(changed) and 1 or 0
end
