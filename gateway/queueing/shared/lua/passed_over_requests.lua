-- Requests that were passed over, since no worker would do for them: a search does not look at one again until one of
-- its workers changes.
--
-- The rules are VainLook and is_no_wider of policies/admission/passed_over.py. A look at a request is in vain if
-- best_route finds no worker. One gateway alone keeps the last ranking of each request instead, for most of its looks:
-- gateway/dispatch/last_ranking.py.
--
-- A `round` is the search for the turns of one queue in one call: see turns.lua.

local REMEMBERED_QUEUES_MAX, REMEMBERED_LOOKS_MAX = 4096, 4096

-- Returns whether these terms leave no request more room than those before.
local function is_no_wider(before)
  if terms.no_wider[before] == nil then
    terms.no_wider[before] = terms.narrow <= before.narrow and terms.wide <= before.wide
      and (terms.open or -1) <= (before.open or -1) and (terms.open == nil) == (before.open == nil)
      and terms.contended == before.contended and terms.counts_own == before.counts_own
      and terms.hold == before.hold and terms.filled == before.filled
      and terms.patient_target == before.patient_target and terms.last_open == before.last_open
      and terms.open_tokens == before.open_tokens
  end
  return terms.no_wider[before]
end

-- Returns whether a worker has changed in a way that could help a request that has looked at it, as its worker `i`.
local function may_help(vain, i, load)
  if not load or load[QUEUED] < vain.tokens[i] then return true end
  if load[QUEUED] > vain.tokens[i] and vain.waits_for[vain.workers[i]] then return true end
  if load[QUEUED] - load[QUEUED_ELSEWHERE] < vain.own[i] then return true end
  return (load[STREAMS] < vain.slots[i]) ~= (vain.streams[i] < vain.slots[i])
end

-- Returns whether another look would be in vain as well. `vain`: what the last one has seen (look_in_vain).
local function stays_in_vain(vain, closed, crowds)
  if not is_no_wider(vain.terms) then return false end
  for _, worker in ipairs(vain.kept_out) do
    if not is_closed(worker, closed, crowds) then return false end
  end
  local now_there = last_loads[loads] or {}
  for i, worker in ipairs(vain.workers) do
    if may_help(vain, i, now_there[worker]) then return false end
  end
  return true
end

-- Returns what searches of a queue have found. It is empty for a new queue, and after another server has searched it.
local function recall(queue)
  virtual_time(queue)
  local memory = remembered[queue.meta]
  if not memory or not queue.searched_here or memory.added >= REMEMBERED_LOOKS_MAX then
    if not queue.searched_here then call('HSET', queue.meta, 'm', memory_name) end
    if remembered_count >= REMEMBERED_QUEUES_MAX then remembered, remembered_count = {}, 0 end
    if not remembered[queue.meta] then remembered_count = remembered_count + 1 end
    memory, queue.searched_here = {vain_looks = {}, tickets = {}, added = 0}, true
    remembered[queue.meta] = memory
  end
  return memory
end

-- Returns whether a round that has found no worker for one more request may continue behind it.
local function may_pass_over(round) return terms.hold and round.passed_over_count < terms.passed_over_max end

local function pass_over(round, tenant)
  round.passed_over[tenant] = (round.passed_over[tenant] or 0) + 1
  round.passed_over_count = round.passed_over_count + 1
end

-- Returns whether a look at this request is known to be in vain. The workers that it waits for are then closed.
local function is_in_vain(queue, round, id)
  local vain = round.memory.vain_looks[id]
  if not vain then return false end
  local is_narrow = narrow_applies(queue, #round.tickets > 1)
  if vain.is_narrow ~= is_narrow or vain.ahead_of_cells ~= is_ahead(queue, round.start) then return false end
  local crowds = is_narrow and not queue.background
  if not stays_in_vain(vain, round.closed, crowds) then return false end
  close(vain.waits_for, round.closed, crowds)
  return true
end
