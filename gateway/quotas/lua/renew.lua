#!lua
-- Keeps a lease that is still held for another period.
--
-- KEYS  1: lease; then for every scope: its buckets, its running leases (as in reserve.lua)
-- ARGV  1: lease id  2: lease ms
-- Gives 1; 0 if it has ended. A lease that Redis has lost (a flush, a failover) is there again.
if redis.call('GET', KEYS[1]) == 'ended' then
  return 0
end
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])
redis.call('SET', KEYS[1], 'held', 'PX', ARGV[2])
for key = 3, #KEYS, 2 do
  redis.call('ZADD', KEYS[key], until_ms, ARGV[1])
  redis.call('PEXPIRE', KEYS[key], ARGV[2])
end
return 1
