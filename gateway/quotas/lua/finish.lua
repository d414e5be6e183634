-- Ends a lease once: the actual cost replaces the reserved one in every limit, and its concurrency is free.
--
-- keys  as for reserve
-- args  1: owner of the lease's record  2: ms for which the end is remembered  3: 1 settles, 0 releases
--       4: fingerprint under a client's own key  5: ms for which that is known
--       6: reserved cost by unit, packed  7: actual cost, packed  8: number of the key of restore, 0 for none
--       9: ms since the lease ended  10: the limits, packed as for reserve  11: number of the lease in its record
-- Returns {1, limit, whole units used of it, ...} of the limits for which an alert is due; {0} if it had ended.
--
-- If the lease is gone (not renewed in time), settling still charges what was used beyond the reserved cost, and
-- releasing gives nothing back. A long window that was restored from the ledger already contains the usage of requests
-- that ended before the restoration, which is therefore not charged again.
verbs.finish = function(keys, args)
  local now = now_us()
  local id, settles, fingerprint = args[1], args[3] == '1', args[4]
  local reserved, actual, layout = cost_of(args[6]), cost_of(args[7]), layout_of(args[10])
  local number = tonumber(args[11])
  local lease, alerts = lease_of(keys[1]), {1}
  if lease and (lease.owner ~= id or has_ended(lease, number)) then
    return {0}
  end
  local meters, changed = meters_of(layout, keys, now), {}
  end_charges(layout, keys, meters, changed, alerts, now, {
    lease = lease,
    number = number,
    reserved = reserved,
    actual = settles and actual or NOTHING,
    settles = settles,
    restored = keys[tonumber(args[8])],
    age_ms = tonumber(args[9]),
  })
  for _, limit in ipairs(layout.limits) do
    if limit.unit == CONCURRENCY then
      redis.call('ZREM', keys[limit.key], member_of(id, number))
    end
  end
  write_meters(layout, keys, meters, changed, now)

  lease = lease or unknown_lease(id, math.floor(now / 1000) + tonumber(args[2]), fingerprint, number)
  mark_ended(lease, number)
  if fingerprint ~= '' then
    -- An attempt for which nothing was charged does not count.
    lease.attempt, lease.charges = lease.attempt - (settles and 0 or 1), {}
  end
  write_lease(keys[1], lease, tonumber(fingerprint ~= '' and args[5] or args[2]))
  return alerts
end
