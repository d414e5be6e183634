#!lua flags=allow-oom
-- maintenance_lease: acquires or renews the lease of the gateway that keeps the index within its bounds.
--
-- KEYS  1: keeper
-- ARGV  1: id of the calling gateway  2: ms for which it has the lease
-- Returns 1 if the caller has the lease from now on, 0 if another gateway has it.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
