#!lua flags=allow-oom
-- tenure: gives a worker its tenure, the number that stands for it in the tree. A worker that starts again gets a
-- new number, and everything that is held under the old one is void.
--
-- KEYS  1: workers  2: log  3: meta          of the registry
-- ARGV  1: tip  2: channel  3: worker  4: its instance, empty if unknown  5: the tenure that ends, 0 for none
--       6: entries kept in log
-- A new tenure begins if there is none, if the current one ends, or if another instance has it.
-- Returns the worker's tenure. A repeated call changes nothing.
local value = redis.call('HGET', KEYS[1], ARGV[3])
local instance, ends = ARGV[4], tonumber(ARGV[5])
local current, holder = 0, ''
if value then
  current = struct.unpack('<I4', value)
  holder = string.sub(value, 5)
end
local another = instance ~= '' and holder ~= '' and instance ~= holder
local named = instance ~= '' and holder == ''
if current ~= 0 and current ~= ends and not another and not named then return current end

local tenure = current
if current == 0 or current == ends or another then
  -- The clock gives the first number, so that after a loss of the registry no number is used again.
  local last = tonumber(redis.call('HGET', KEYS[3], 'tenures') or '0')
  if last == 0 then last = tonumber(redis.call('TIME')[1]) end
  tenure = last + 1
end
if instance == '' then instance = holder end
local sequence = tonumber(redis.call('HGET', KEYS[3], 'sequence') or '0') + 1
local before = redis.call('HGET', KEYS[3], 'tip') or '\0\0\0\0\0\0\0\0'
value = struct.pack('<I4', tenure) .. instance
local entry = ARGV[1] .. before .. struct.pack('<I8', sequence) .. 't' ..
  struct.pack('<I2', #ARGV[3]) .. ARGV[3] .. value
redis.call('HSET', KEYS[1], ARGV[3], value)
redis.call('HSET', KEYS[3], 'tip', ARGV[1], 'sequence', sequence, 'tenures', tenure)
if sequence == 1 then redis.call('DEL', KEYS[2]) end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], string.format('%.0f-1', sequence), 'e', entry)
redis.call('SPUBLISH', ARGV[2], entry)
return tenure
