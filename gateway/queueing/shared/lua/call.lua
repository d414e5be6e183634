-- The queue that all gateways share decides inside Redis which waiting request is next, and which worker it goes to.
-- This file holds what all its functions have in common: their keys and arguments, and the variables of one call.
--
--   admit --- a worker has room, and no request waits ---------------------> placed --first--> answering --end--> gone
--     +--> waiting --turn: takes load, gateway is notified--> granted --claim--^
--             ^                                                  |
--             +--- gateway calls admit again <--- 250 ms over ---+
--
-- There is one queue per model, and another one for its batch work. Its name ends in "#batch", and its requests get no
-- turn while requests wait in the other queues of the call. All queues count the load of the workers together.
--
-- One gateway alone follows the same rules in Python; the head of each file here names those functions and the
-- differences. tests/property/test_shared_queue.py compares this library with a model made of those functions.
--
-- KEYS  1 gateways    sorted set: gateway -> end of its lease in ms
--       2 loads       hash: worker -> tokens queued, streams, KV tokens, packed; then what other cells have of these
--       3 places      hash: id -> record, in any state
--       4 owned       sorted set of ids, by name: "gateway:number"
--       5 grants      sorted set: id -> ms by which its turn has to be claimed
--       6 ended       sorted set: id -> ms until which it is remembered
--       7 turns       stream: turns that were granted, and that gateways joined or left
--       then for every queue
--       1 meta        hash: v, the virtual time; n, the number of the last ticket; g, when it granted a turn beside
--                     other queues; s, the largest start tag that may take a worker which is not idle, and u, until
--                     when in ms (see cells.lua); m, the memory of the server that last searched it (see recall)
--       2 active      sorted set: "number tenant" -> start tag, of tenants that wait; number: of its first ticket
--       3 finish      sorted set: tenant -> finish tag
--       4 tickets     sorted set, by name: "tenant number id"
-- ARGV  1 gateway, then the terms: the DispatchWindow of policies/admission/dispatch_window.py and the setting `hold`
--       2 narrow and 3 wide window in tokens  4 most tokens ahead of an open worker; '': none need be left open
--       5 1: contended; 2 is added where the tenants of the model are divided among shards
--       6 1: a prompt takes space of the wide window itself
--       7 share by which a worker may cost more than the best one; '': any worker with room will do
--       8 the filled workers (policies/admission/filled_workers.py): their window in tokens, the least TTFT target of
--         patient classes in seconds, what a tenant that crowds may have ahead of an open worker ('': classes fill
--         them), and the last open worker, with spaces between; '': none is filled
--       9 requests that are passed over at most before the search for one that has room ends
--       10 number of queues, their names; then the arguments of the verb
-- Returns {outcome, ms to the next deadline or -1, gateways, ...}; outcome -2: the gateway has no lease, and must join.
--
-- Every verb may be repeated with the same result. All loops are bounded by constants.

local verbs = {}
local ENDED_MS, SWEPT_MAX, TURNS_MAX = 10000, 512, 4096

-- What searches of a queue have found, from call to call, by the queue's key `meta`: `vain_looks`, by id what
-- best_route saw without finding a worker; `tickets`, the first tickets of tenants that were passed over; `added`, how
-- many looks were added.
local remembered, remembered_count = {}, 0

-- The name of this server's memory, which the first call sets.
local memory_name

-- Every call sets these again; redis.call does not exist yet when a library is loaded. `known_loads` has the loads that
-- this call has read: {tokens, streams, KV tokens, and what other cells have of the three} by worker. `terms`: see
-- ARGV. `next_at`: the index of the next argument. `more`: whether this call has granted GRANTS_MAX turns, so that a
-- further call may grant more. `seen`: the tokens queued by worker that the calling gateway knows of, also from other
-- shards. `in_step`: other shards and cells have reported their loads in this call (see cells.lua).
local call, now, gateways, loads, places, owned, grants, ended, turns, queues, terms, next_at, more, known_loads, seen,
  in_step

-- Begins a call of a verb: sets the variables above. Returns the end of the gateway's lease; nil without a lease.
local function begin(keys, args)
  call = redis.call
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  gateways, loads, places, owned, grants, ended, turns = unpack(keys, 1, 7)
  local flags = tonumber(args[5])
  terms = {narrow = tonumber(args[2]), wide = tonumber(args[3]), open = tonumber(args[4]), contended = flags % 2 == 1,
    divided = flags >= 2, counts_own = args[6] == '1', hold = tonumber(args[7]),
    passed_over_max = tonumber(args[9]), no_wider = {}}
  if args[8] ~= '' then
    local tokens, target, open_tokens, last_open = string.match(args[8], '^(%S+) (%S+) (%S*) (.*)$')
    terms.filled, terms.patient_target, terms.last_open = tonumber(tokens), tonumber(target), last_open
    terms.open_tokens = tonumber(open_tokens)
  end
  queues, more, known_loads, seen, in_step = {}, false, {}, {}, false
  memory_name = memory_name or table.concat({args[1], time[1], time[2]}, ' ')
  local count = tonumber(args[10])
  for i = 1, count do
    local k = 7 + (i - 1) * 4
    local queue = {name = args[10 + i], meta = keys[k + 1], active = keys[k + 2], finish = keys[k + 3],
      tickets = keys[k + 4], finishes = {}, background = string.sub(args[10 + i], -6) == '#batch'}
    queues[i], queues[queue.name] = queue, queue
  end
  next_at = 11 + count
  return call('ZSCORE', gateways, args[1])
end

local function text(number) return string.format('%.17g', number) end

local function reply(outcome, ...)
  local first = call('ZRANGE', grants, 0, 0, 'WITHSCORES')
  local due = more and 0 or first[2] and math.max(0, tonumber(first[2]) - now) or -1
  return {outcome, due, call('ZCARD', gateways), ...}
end

local function next_arg(args)
  next_at = next_at + 1
  return args[next_at - 1]
end
