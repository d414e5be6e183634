-- A lease as it is stored: {owner, ends, fingerprint, attempt, paid, cost, charges, settled}.
--
-- owner        id of the reservation; under a client's own key another one may follow it
-- ends         ms at which the lease ends; 0: it has ended
-- fingerprint  of the request, under a client's own key; else empty
-- attempt      number of the attempt under that key
-- paid         what earlier attempts under that key were charged, by unit
-- cost         what this attempt has reserved, by unit
-- charges      for every limit what it was charged (-1: not at all) and the receipt of that
-- settled      what earlier attempts were settled to, by unit; the accounts have it already
--
-- Without a client's own key, paid, cost and settled are not stored.
local UNITS = 6
local NOTHING = {0, 0, 0, 0, 0, 0}

local function lease_of(key)
  local stored = redis.call('GET', key)
  if not stored then
    return nil
  end
  local found = cmsgpack.unpack(stored)
  return {
    owner = found[1],
    ends = found[2],
    fingerprint = found[3],
    attempt = found[4],
    paid = found[5] or NOTHING,
    cost = found[6] or NOTHING,
    charges = found[7],
    settled = found[8] or NOTHING,
  }
end

local function write_lease(key, lease, ms)
  local packed
  if lease.fingerprint == '' then
    packed = cmsgpack.pack({lease.owner, lease.ends, '', 1, false, false, lease.charges})
  else
    packed = cmsgpack.pack({
      lease.owner,
      lease.ends,
      lease.fingerprint,
      lease.attempt,
      lease.paid,
      lease.cost,
      lease.charges,
      lease.settled,
    })
  end
  redis.call('SET', key, packed, 'PX', ms)
end

local function larger(one, other)
  local found = {}
  for unit = 1, UNITS do
    found[unit] = math.max(one[unit], other[unit])
  end
  return found
end
