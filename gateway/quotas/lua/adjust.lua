#!lua
-- Changes what one holder has in escrow of an account: units debited in advance, and slots for running requests.
--
-- KEYS  1: holder; then for every scope: its buckets, its running leases, its slots (as in reserve.lua)
-- ARGV  1: holder id  2: lease ms  3: sequence  4: 1 charges in any case (what was used already)
--       then for every scope: concurrency (0: any), slots wanted, number of limits,
--       and for every limit: name, amount, period in us, change of units
-- Gives {outcome, server time in ms, remaining of limit 1, its reset in us, ...}; outcome 1 done, 0 refused.
--
-- All or nothing, and once: a sequence that was applied is not applied again. Slots that are not renewed for
-- `lease ms` are free again; units are not, since nobody can say what was used.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
local holder, id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
local sequence, forced = ARGV[3], ARGV[4] == '1'
local again = redis.call('GET', holder) == sequence

local writes, slots, ended, standings, refused = {}, {}, {}, {}, false
local arg = 5
for key = 2, #KEYS, 3 do
  local concurrency, wanted, limits = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  arg = arg + 3
  if concurrency > 0 and not again then
    local running, before = redis.call('ZCOUNT', KEYS[key + 1], '(' .. now_ms, '+inf'), 0
    local held = redis.call('HGETALL', KEYS[key + 2])
    for at = 1, #held, 2 do
      local count, until_ms = string.match(held[at + 1], '(%d+) (%d+)')
      if tonumber(until_ms) > now_ms then
        if held[at] == id then before = tonumber(count) else running = running + tonumber(count) end
      else
        ended[#ended + 1] = {KEYS[key + 2], held[at]}
      end
    end
    if wanted > before and not forced and running + wanted > concurrency then refused = true end
    slots[#slots + 1] = {KEYS[key + 2], wanted}
  end
  for _ = 1, limits do
    local name, amount = ARGV[arg], tonumber(ARGV[arg + 1])
    local period, change = tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
    arg = arg + 4
    local interval = period / amount
    local before = math.max(tonumber(redis.call('HGET', KEYS[key], name) or '0'), now)
    local after = again and before or math.max(before + change * interval, now)
    if change > 0 and not forced and not again and after - period - now > 0.5 then refused = true end
    writes[#writes + 1] = {KEYS[key], name, after}
    standings[#standings + 1] = {before, after, period, interval}
  end
end

local answer = {refused and 0 or 1, now_ms}
for _, standing in ipairs(standings) do
  local tat = refused and standing[1] or standing[2]
  answer[#answer + 1] = math.max(0, math.floor((now + standing[3] - tat) / standing[4] + 0.000001))
  answer[#answer + 1] = math.ceil(tat - now)
end
if refused or again then
  return answer
end

local full = {}
for _, write in ipairs(writes) do
  redis.call('HSET', write[1], write[2], string.format('%.3f', write[3]))
  full[write[1]] = math.max(full[write[1]] or 0, write[3])
end
for key, tat in pairs(full) do
  redis.call('PEXPIRE', key, math.ceil((tat - now) / 1000) + 1000)
end
for _, slot in ipairs(ended) do
  redis.call('HDEL', slot[1], slot[2])
end
for _, slot in ipairs(slots) do
  if slot[2] > 0 then
    redis.call('HSET', slot[1], id, slot[2] .. ' ' .. (now_ms + lease_ms))
    redis.call('PEXPIRE', slot[1], lease_ms)
  else
    redis.call('HDEL', slot[1], id)
  end
end
redis.call('SET', holder, sequence, 'PX', lease_ms)
return answer
