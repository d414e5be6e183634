#!lua
-- Ends a lease once: moves every bucket by the change from the reserved to the actual cost, frees concurrency.
--
-- KEYS  1: lease; then for every scope: its buckets, its running leases (as in reserve.lua)
-- ARGV  1: lease id  2: tombstone ms  3: 1 settles, 0 releases
--       then for every scope: number of limits, and for every limit: name, amount, period in us, change of cost
-- Gives 1 if this call ended it, 0 if it had ended before.
--
-- A lease that is gone was not renewed in time: settling still charges the change, releasing gives nothing back.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local lease, id, tombstone_ms, settles = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local state = redis.call('GET', lease)
if state == 'ended' then
  return 0
end
local moves = settles or state == 'held'
local arg = 4
for key = 2, #KEYS, 2 do
  local limits, full = tonumber(ARGV[arg]), 0
  arg = arg + 1
  for _ = 1, limits do
    local name, amount = ARGV[arg], tonumber(ARGV[arg + 1])
    local period, change = tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
    arg = arg + 4
    if moves and change ~= 0 then
      local tat = math.max(tonumber(redis.call('HGET', KEYS[key], name) or '0'), now)
      tat = math.max(tat + change * period / amount, now)
      redis.call('HSET', KEYS[key], name, string.format('%.3f', tat))
      full = math.max(full, tat)
    end
  end
  if full > 0 then
    local left = redis.call('PTTL', KEYS[key])
    redis.call('PEXPIRE', KEYS[key], math.max(left, math.ceil((full - now) / 1000) + 1000))
  end
  redis.call('ZREM', KEYS[key + 1], id)
end
redis.call('SET', lease, 'ended', 'PX', tombstone_ms)
return 1
