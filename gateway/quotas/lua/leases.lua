-- A lease as it is stored: {owner, ends in ms (0: it has ended), fingerprint, attempt, paid, cost, charges, settled}.
--
-- `owner` is the reservation; under a client's own key another one may follow it. `paid`: what earlier attempts under
-- that key have been charged, by unit; `settled`: the same of those that were settled, and so are in the accounts;
-- `cost`: what this one has reserved. `charges`: for every limit what it was charged (-1: not at all) and the receipt
-- of that.
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
    paid = found[5],
    cost = found[6],
    charges = found[7],
    settled = found[8] or NOTHING,
  }
end

local function keep_lease(key, lease, ms)
  local packed = cmsgpack.pack({
    lease.owner,
    lease.ends,
    lease.fingerprint,
    lease.attempt,
    lease.paid,
    lease.cost,
    lease.charges,
    lease.settled,
  })
  redis.call('SET', key, packed, 'PX', ms)
end

local function larger(one, other)
  local found = {}
  for unit = 1, UNITS do
    found[unit] = math.max(one[unit], other[unit])
  end
  return found
end
