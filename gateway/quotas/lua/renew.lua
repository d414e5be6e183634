-- Keeps a lease that is still held for another period.
--
-- keys  1: lease; then the running leases of its limits of concurrency (as for reserve)
-- args  1: owner of the lease's record  2: lease ms  3: fingerprint under a client's own key  4: ms for which that is
--       known  5: number of the lease in its record
-- Returns 1; 0 if it has ended. A lease that Redis has lost (a flush, a failover) is written again.
verbs.renew = function(keys, args)
  local id, lease_ms, fingerprint, number = args[1], tonumber(args[2]), args[3], tonumber(args[5])
  local lease = lease_of(keys[1])
  if lease and (lease.owner ~= id or has_ended(lease, number)) then
    return 0
  end
  local now = now_us()
  local ends, member = math.floor(now / 1000) + lease_ms, member_of(id, number)
  for key = 2, #keys do
    -- A shadow limit may not have counted it.
    if not lease or redis.call('ZSCORE', keys[key], member) then
      redis.call('ZADD', keys[key], ends, member)
      keep_key(keys[key], lease_ms, now, true)
    end
  end
  lease = lease or unknown_lease(id, ends, fingerprint, number)
  lease.ends = ends
  write_lease(keys[1], lease, fingerprint ~= '' and tonumber(args[4]) or lease_ms)
  return 1
end
