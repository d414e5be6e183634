#!lua flags=allow-oom
-- keep: which gateway keeps the index within its bounds. It has to be asked for again before it is over.
--
-- KEYS  1: keeper
-- ARGV  1: id of the calling gateway  2: ms for which it keeps
-- Gives 1 if it is the caller from now on, 0 if it is another.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
