-- A lease as it is stored: {owner, ends, fingerprint, attempt, -, -, charges}.
--
-- owner        id of the reservation; under a client's own key another one may follow it
-- ends         ms at which the lease ends; 0: it has ended
-- fingerprint  of the request, under a client's own key; else empty
-- attempt      number of the attempt under that key
-- charges      for every limit what it was charged (-1: not at all) and the receipt of that
--
-- Two places are empty: gateways of earlier versions have stored the price of earlier attempts there.
local NOTHING = {0, 0, 0, 0, 0, 0}

-- Returns a lease from its stored form, or nil.
local function lease_from(stored)
  if not stored then
    return nil
  end
  local found = cmsgpack.unpack(stored)
  return {
    owner = found[1],
    ends = found[2],
    fingerprint = found[3],
    attempt = found[4],
    charges = found[7],
  }
end

local function lease_of(key)
  return lease_from(redis.call('GET', key))
end

-- Writes that a lease has ended, so that it is neither ended nor reserved again.
local function write_ended(key, id, ms)
  redis.call('SET', key, cmsgpack.pack({id, 0}), 'PX', ms)
end

local function write_lease(key, lease, ms)
  local packed = cmsgpack.pack({lease.owner, lease.ends, lease.fingerprint, lease.attempt, false, false, lease.charges})
  redis.call('SET', key, packed, 'PX', ms)
end
