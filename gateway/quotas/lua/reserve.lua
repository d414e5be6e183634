#!lua
-- Takes a cost from every limit of every scope, or nothing at all. GCRA as in policies/gcra.py.
--
-- KEYS  1: lease; then for every scope: its buckets (hash, limit name -> tat in us), its running leases (zset,
--       id -> ms)
-- ARGV  1: lease id  2: lease ms  3: latest server time in ms, 0 for any
--       then for every scope: concurrency (0: any), number of limits, and for every limit: name, amount,
--       period in us, cost
-- Gives {outcome, server time in ms, scope, limit, retry in us, remaining of limit 1, its reset in us, ...}
--       outcome 1 granted, 0 refused (by the limit number of that scope; limit 0 is concurrency; retry -1: never),
--       -1 too late or already ended.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
local lease, id, lease_ms, latest_ms = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local state = redis.call('GET', lease)
if state == 'ended' or (latest_ms > 0 and now_ms > latest_ms and not state) then
  return {-1, now_ms, 0, 0, 0}
end
local again = state == 'held'

-- Read and decide. Nothing is written before everything is known.
local writes, standings = {}, {}
local worst_scope, worst_limit, worst_wait = 0, 0, 0
local arg, scope, conflict = 4, 0, false
for key = 2, #KEYS, 2 do
  scope = scope + 1
  local concurrency, limits = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  arg = arg + 2
  for limit = 1, limits do
    local name, amount = ARGV[arg], tonumber(ARGV[arg + 1])
    local period, cost = tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
    arg = arg + 4
    local interval = period / amount
    local before = math.max(tonumber(redis.call('HGET', KEYS[key], name) or '0'), now)
    local after = again and before or before + cost * interval
    local wait = after - period - now
    if not again and wait > 0.5 then
      if cost > amount then wait = -1 end
      if not conflict or (worst_wait >= 0 and (wait < 0 or wait > worst_wait)) then
        worst_scope, worst_limit, worst_wait, conflict = scope, limit, wait, true
      end
    end
    writes[#writes + 1] = {KEYS[key], name, after}
    standings[#standings + 1] = {before, after, period, interval}
  end
  if concurrency > 0 and not again then
    local running = redis.call('ZCOUNT', KEYS[key + 1], '(' .. now_ms, '+inf')
    if running >= concurrency and (not conflict or (worst_wait >= 0 and worst_wait < 1000000)) then
      worst_scope, worst_limit, worst_wait, conflict = scope, 0, 1000000, true
    end
  end
end

local answer = {conflict and 0 or 1, now_ms, worst_scope, worst_limit, math.ceil(worst_wait)}
for _, standing in ipairs(standings) do
  local tat = conflict and standing[1] or standing[2]
  local left = (now + standing[3] - tat) / standing[4]
  answer[#answer + 1] = math.max(0, math.floor(left + 0.000001))
  answer[#answer + 1] = math.ceil(tat - now)
end
if conflict or again then
  return answer
end

local full = {}
for _, write in ipairs(writes) do
  redis.call('HSET', write[1], write[2], string.format('%.3f', write[3]))
  full[write[1]] = math.max(full[write[1]] or 0, write[3])
end
for key, tat in pairs(full) do
  -- A bucket that is full again needs no memory.
  redis.call('PEXPIRE', key, math.ceil((tat - now) / 1000) + 1000)
end
for key = 3, #KEYS, 2 do
  redis.call('ZREMRANGEBYSCORE', KEYS[key], '-inf', now_ms)
  redis.call('ZADD', KEYS[key], now_ms + lease_ms, id)
  redis.call('PEXPIRE', KEYS[key], lease_ms)
end
redis.call('SET', lease, 'held', 'PX', lease_ms)
return answer
