-- Requests that were passed over, since no worker would do for them: a search does not look at one again until one of
-- its workers changes.
--
-- The rules are VainLook and is_no_wider of policies/admission/passed_over.py. A look at a request is in vain if
-- best_route finds no worker. One gateway alone looks at every request anew.
--
-- A `round` is the search for the turns of one queue in one call: see in_turn.

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

-- Returns whether another look would be in vain as well: no worker has changed in a way that could help the request.
local function stays_in_vain(vain, closed, is_narrow, background, ahead_of_cells)
  if vain.is_narrow ~= is_narrow or vain.ahead_of_cells ~= ahead_of_cells or not is_no_wider(vain.terms) then
    return false
  end
  for _, worker in ipairs(vain.kept_out) do
    local closed_to = closed[worker]
    if not (closed_to == 'all' or closed_to and is_narrow and not background) then return false end
  end
  local now_there = last_loads[loads] or {}
  for i, worker in ipairs(vain.workers) do
    local load, tokens = now_there[worker], vain.tokens[i]
    if not load or load[1] < tokens or load[1] ~= tokens and vain.waits_for[worker]
      or load[1] - load[4] < vain.own[i] or vain.by_streams and load[2] < vain.streams[i] then
      return false
    end
  end
  return true
end

-- Returns what searches of a queue have found. It is empty for a new queue, and after another server has searched it.
local function recall(queue)
  virtual_time(queue)
  local memory = remembered[queue.meta]
  if not memory or not queue.searched_here or memory.count >= REMEMBERED_LOOKS_MAX then
    if not queue.searched_here then call('HSET', queue.meta, 'm', memory_name) end
    if remembered_count >= REMEMBERED_QUEUES_MAX then remembered, remembered_count = {}, 0 end
    if not remembered[queue.meta] then remembered_count = remembered_count + 1 end
    memory, queue.searched_here = {looks = {}, tickets = {}, count = 0}, true
    remembered[queue.meta] = memory
  end
  return memory
end

-- Returns whether a round that has found no worker for one more request may go on behind it.
local function may_pass_over(round) return terms.hold and round.count < terms.passed_over_max end

local function pass_over(round, tenant)
  round.passed_over[tenant] = (round.passed_over[tenant] or 0) + 1
  round.count = round.count + 1
end

-- Returns whether a look at this request is known to be in vain. The workers that it waits for are then closed.
local function is_in_vain(queue, round, id)
  local vain = round.memory.looks[id]
  local is_narrow = vain and narrow_applies(queue, #round.tickets > 1)
  if not vain or not stays_in_vain(vain, round.closed, is_narrow, queue.background, is_ahead(queue, round.start)) then
    return false
  end
  close(vain.waits_for, round.closed, is_narrow and not queue.background)
  return true
end
