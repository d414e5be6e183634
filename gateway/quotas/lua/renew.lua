#!lua
-- Keeps a lease that is still held for another period.
--
-- KEYS  1: lease; then for every scope: its buckets, its running leases, its slots (as in reserve.lua)
-- ARGV  1: lease id  2: lease ms
-- Gives 1 if it was held, 0 if it has ended.
if redis.call('GET', KEYS[1]) ~= 'held' then
  return 0
end
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for key = 3, #KEYS, 3 do
  redis.call('ZADD', KEYS[key], until_ms, ARGV[1])
  redis.call('PEXPIRE', KEYS[key], ARGV[2])
end
return 1
