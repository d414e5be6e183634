#!lua flags=allow-oom
-- feed_leases: keeps which gateways are live, and which two of them follow the KV events of each worker.
--
-- KEYS  1: gateways, sorted set: id -> deadline in server ms   2: leases, hash: worker -> lease   3: version
-- ARGV  1: id of the calling gateway   2: ms for which it counts as live, 0 if it leaves   3: version that it knows
--       4, 5, 6, ...: worker, its lease as the caller knows it, its new lease (empty: none); repeated
-- A lease changes only if it is still as the caller knows it: of two gateways that want it one gets it.
-- Returns {version} if nothing is new to the caller; else {version, ids of gateways, {worker, lease, ...}}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local version = tonumber(redis.call('GET', KEYS[3]) or '0')
local changed = version == 0

local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 256)
if #gone > 0 then
  redis.call('ZREM', KEYS[1], unpack(gone))
  changed = true
end
if ARGV[2] == '0' then
  changed = redis.call('ZREM', KEYS[1], ARGV[1]) == 1 or changed
else
  changed = redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1]) == 1 or changed
end
for at = 4, #ARGV, 3 do
  local worker, known, wanted = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if (redis.call('HGET', KEYS[2], worker) or '') == known and known ~= wanted then
    if wanted == '' then
      redis.call('HDEL', KEYS[2], worker)
    else
      redis.call('HSET', KEYS[2], worker, wanted)
    end
    changed = true
  end
end
if changed then
  -- The clock gives the first number, so that no number is used again after Redis has lost its data.
  version = math.max(version + 1, now)
  redis.call('SET', KEYS[3], string.format('%.0f', version))
end
if string.format('%.0f', version) == ARGV[3] then return {version} end
return {version, redis.call('ZRANGE', KEYS[1], 0, -1), redis.call('HGETALL', KEYS[2])}
