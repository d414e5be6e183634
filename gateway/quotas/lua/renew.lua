-- Keeps a lease that is still held for another period.
--
-- keys  1: lease; then the running leases of its limits of concurrency (as for reserve)
-- args  1: reservation id  2: lease ms  3: fingerprint under a client's own key  4: ms for which that is known
-- Returns 1; 0 if it has ended. A lease that Redis has lost (a flush, a failover) is written again.
verbs.renew = function(keys, args)
  local id, lease_ms, fingerprint = args[1], tonumber(args[2]), args[3]
  local lease = lease_of(keys[1])
  if lease and (lease.owner ~= id or lease.ends == 0) then
    return 0
  end
  local now = now_us()
  local ends = math.floor(now / 1000) + lease_ms
  for key = 2, #keys do
    -- A shadow limit may not have counted it.
    if not lease or redis.call('ZSCORE', keys[key], id) then
      redis.call('ZADD', keys[key], ends, id)
      keep_key(keys[key], lease_ms, now, true)
    end
  end
  lease = lease
    or {owner = id, fingerprint = fingerprint, attempt = 1, charges = {}}
  lease.ends = ends
  write_lease(keys[1], lease, fingerprint ~= '' and tonumber(args[4]) or lease_ms)
  return 1
end
