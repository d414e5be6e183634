-- Reserves quota: takes a cost from every limit of every scope, or nothing at all.
--
-- keys  1: lease; then, in any order, the meters of scopes (hash: limit name -> meter) and the running leases of
--       limits of concurrency (zset: reservation id -> ms at which its lease ends)
-- args  1: owner of the lease's record  2: lease ms  3: latest server time in ms at which the answer still counts, 0 for any
--       4: fingerprint under a client's own key, empty without one  5: attempts under it  6: ms for which it is known
--       7: cost by unit, packed  8: number of the key of restore, 0: lost usage cannot be put back
--       9: the limits, packed: of each the number of its key, unit (0: concurrency), reset, period, length in us,
--       amount, mode, the usage at which an alert is sent (0: never), and name  10: number of the lease in its record;
--       one that was reserved together with others is found here, but never reserved again
-- Returns {outcome, server time in ms, limit, retry in us, number of shadowed limits, these limits,
--        remaining of limit 1, its reset in us, ...}
--       outcome 1 granted; 0 refused by that limit (retry -1: never); -1 too late, or already ended;
--       -5 the usage of long windows is lost, and has to be put back first
--       under a client's key -2 another attempt runs, -3 it was for another request, -4 all attempts are made
verbs.reserve = function(keys, args)
  local now = now_us()
  local now_ms = math.floor(now / 1000)
  local id, lease_ms, latest_ms, fingerprint = args[1], tonumber(args[2]), tonumber(args[3]), args[4]
  local repeats_max, known_ms = tonumber(args[5]), fingerprint ~= '' and tonumber(args[6]) or lease_ms
  local cost, restore_key, layout = cost_of(args[7]), keys[tonumber(args[8])], layout_of(args[9])

  -- Look at the lease: this same call may have been made before, or another attempt under the client's key.
  local lease, number, attempt = lease_of(keys[1]), tonumber(args[10]), 1
  local same_call = lease and lease.owner == id
  if same_call then
    if has_ended(lease, number) then
      return {-1, now_ms}
    end
  elseif number > 0 or (latest_ms > 0 and now_ms > latest_ms) then
    return {-1, now_ms}
  elseif lease then
    if lease.fingerprint ~= fingerprint then
      return {-3, now_ms}
    elseif lease.ends > now_ms then
      return {-2, now_ms}
    elseif lease.attempt >= repeats_max then
      return {-4, now_ms}
    end
    attempt = lease.attempt + 1
  end
  if not same_call and is_lost(restore_key, layout, keys) then
    return {-5, now_ms}
  end

  -- Decide, before anything is written: `refusing` is the number of the limit that refuses the cost, 0 if all have
  -- room.
  local meters, running = meters_of(layout, keys, now), running_of(layout, keys, now_ms)
  local refusing, wait_us, charges, shadowed = 0, 0, {}, {}
  if not same_call then
    refusing, wait_us, charges, shadowed = judge(layout, meters, running, cost, now)
  end

  -- Charge all limits, and keep the lease.
  if refusing == 0 and not same_call then
    local changed = {}
    for at, limit in ipairs(layout.limits) do
      if limit.unit == CONCURRENCY and charges[2 * at - 1] > 0 then
        run(keys[limit.key], {id}, lease_ms, now, running[at] == 0)
      end
    end
    take(layout, meters, running, charges, changed, now, 1)
    write_meters(layout, keys, meters, changed, now)
    write_lease(keys[1], {
      owner = id,
      ends = now_ms + lease_ms,
      fingerprint = fingerprint,
      attempt = attempt,
      charges = charges,
    }, known_ms)
  end

  -- Answer, with the state of each limit.
  local answer = {refusing == 0 and 1 or 0, now_ms, refusing, math.ceil(wait_us), #shadowed}
  for _, at in ipairs(shadowed) do
    answer[#answer + 1] = at
  end
  add_statuses(answer, layout, meters, running, now)
  return answer
end
