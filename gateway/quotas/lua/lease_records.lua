-- A record of leases as it is stored: {owner, ends, fingerprint, attempt, -, -, charges, count, ended}.
--
-- owner        id of the reservation, or the name under which one call has reserved several; under a client's own key
--              another reservation may follow it
-- ends         ms at which its leases end; 0: all have ended
-- fingerprint  of the request, under a client's own key; else empty
-- attempt      number of the attempt under that key
-- charges      for every limit what each lease was charged (-1: not at all), and the receipt of the first lease
-- count        how many leases were granted, the first ones; 0: Redis does not know; nil in the record of one reservation
-- ended        for every lease by its number whether it has ended; nil in the record of one reservation
--
-- Two places are empty: gateways of earlier versions have stored the price of earlier attempts there.
--
-- The leases of one call have numbers from 1 and share a record, which is written once for all that end together. The
-- lease of one reservation has the number 0.
local NOTHING = {0, 0, 0, 0, 0, 0}

-- Returns a record from its stored form, or nil.
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
    count = found[8],
    ended = found[9],
  }
end

local function lease_of(key)
  return lease_from(redis.call('GET', key))
end

-- Returns the record of leases that Redis does not know: never charged, or lost.
local function unknown_lease(owner, ends, fingerprint, number)
  local record = {owner = owner, ends = ends, fingerprint = fingerprint, attempt = 1, charges = {}}
  if number > 0 then
    record.count, record.ended = 0, {}
  end
  return record
end

-- Returns whether a lease has ended, or was never granted.
local function has_ended(lease, number)
  if lease.ends == 0 or number == 0 then
    return lease.ends == 0
  end
  return lease.ended[number] == true or (lease.count > 0 and number > lease.count)
end

-- Notes that a lease has ended, in a record that is written after that.
local function mark_ended(lease, number)
  if number == 0 then
    lease.ends = 0
    return
  end
  local ended = lease.ended
  for before = #ended + 1, number do
    ended[before] = false
  end
  ended[number] = true
  local all_ended = lease.count > 0
  for each = 1, lease.count do
    all_ended = all_ended and ended[each]
  end
  lease.ends = all_ended and 0 or lease.ends
end

-- Returns the name of a lease in the sets of running ones.
local function member_of(owner, number)
  return number == 0 and owner or owner .. ':' .. number
end

-- Writes a record. Of one whose leases have all ended only that is kept, so that none is ended or reserved again.
local function write_lease(key, lease, ms)
  local packed
  if lease.ends == 0 and lease.fingerprint == '' then
    packed = cmsgpack.pack({lease.owner, 0})
  else
    local fields = {lease.owner, lease.ends, lease.fingerprint, lease.attempt, false, false, lease.charges}
    fields[8], fields[9] = lease.count, lease.ended
    packed = cmsgpack.pack(fields)
  end
  redis.call('SET', key, packed, 'PX', ms)
end
