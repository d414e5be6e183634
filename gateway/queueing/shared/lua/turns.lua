-- Turns: which waiting request goes next, and the search for it through all queues of a call.
--
-- The first request in fair order waits until a worker that it accepts has room. Later requests do not take that room,
-- but may go to workers that no request before them waits for.
--
-- passed_over_requests.lua has which requests a search passes over; best_route.lua chooses the worker. The variables of
-- one call (`queues`, `terms`, `now`) are declared in call.lua.
--
-- One gateway alone does this in give_turns of gateway/queueing/turn_giving.py and of waiting_rooms.py beside it, with
-- FlowHeads of policies/queueing/flow_heads.py: what is a flow there is a tenant of one queue here.
-- A request that waits for a worker of its own (policies/admission/awaited_tokens.py) has the route to that one alone.
--
-- A `round` is the search for the turns of one queue in one call. Its fields:
--
-- passed_over        how many requests were passed over, by tenant
-- passed_over_count  how many in all
-- looked_at_count    how many of these were looked at in this call; the others were known to be in vain
-- tenants_done       how many tenants at the head of the order are done with: see first_waiting
-- closed             the workers that earlier requests wait for: see best_route
-- memory             what searches of this queue have found: see recall; set by grant_one
-- tenants            tenants in order, as members of `active` and their start tags, as read last; nil: read them again
-- tenants_before     how many tenants are before the first of `tenants`
-- tenant             the tenant that is looked at; nil: the next one is to be taken
-- active             its member of `active`
-- start              its start tag
-- tickets            its first tickets

local CLAIM_MS, GRANTS_MAX, TENANTS_READ = 250, 8, 16
-- As in policies/admission/search_bounds.py.
local PASSED_OVER_MAX, PASSED_OVER_OF_FLOW_MAX = 16, 4

-- Returns the tenant behind the first `round.tenants_done` ones, as a member of `active`, and its start tag. Reads
-- several at once.
local function next_tenant(queue, round)
  local at = round.tenants and 2 * (round.tenants_done - round.tenants_before)
  if not at or at >= 2 * TENANTS_READ then
    local first = round.tenants_done
    at, round.tenants_before = 0, first
    round.tenants = call('ZRANGE', queue.active, first, first + TENANTS_READ - 1, 'WITHSCORES')
  end
  return round.tenants[at + 1], tonumber(round.tenants[at + 2] or '')
end

-- Returns the next request that is neither passed over nor known to be in vain: the id of the first ticket left of the
-- tenant with the least start tag, its record and that tag. Tickets without a record are removed.
-- `round.tenants_done`: how many tenants at the head of the order have only requests that this round has passed over.
-- The search continues behind them, and they stay at the head: only a tenant that gets a turn moves back.
local function first_waiting(queue, round)
  for _ = 1, SWEPT_MAX do
    if not round.tenant then
      round.active, round.start = next_tenant(queue, round)
      if not round.active then return nil end
      round.tenant = string.sub(round.active, 18) -- Behind the 16 digits of a number, and \0: see member.
      round.tickets = round.memory.tickets[round.tenant] or tickets_of(queue, round.tenant, PASSED_OVER_OF_FLOW_MAX)
    end
    local tenant, passed_over = round.tenant, round.passed_over[round.tenant] or 0
    local ticket = round.tickets[passed_over + 1]
    local id = ticket and string.sub(ticket, #tenant + 19) -- Behind tenant, \0, 16 digits, and \0: see ticket_of.
    if id and is_in_vain(queue, round, id) then
      if not may_pass_over(round) then return nil end
      pass_over(round, tenant)
    else
      local record = id and look(id)
      if record and record.state == 'waiting' then return id, record, round.start end
      round.tenant = nil
      if ticket then
        round.tenants = nil
        with_tenant(queue, tenant, function(start)
          call('ZREM', queue.tickets, ticket)
          return start
        end)
      elseif passed_over > 0 then
        round.tenants_done = round.tenants_done + 1
        round.memory.tickets[tenant] = round.tickets
      else
        round.tenants = nil
        call('ZREM', queue.active, round.active)
        queue.waiting = nil
      end
    end
  end
end

-- Grants a turn to the first request for which a worker with room is good enough; returns whether it found one. The
-- request `mine` is placed at once, since its gateway makes the call. No request is looked at twice in a round.
local function grant_one(queue, mine, round)
  local id, record, start, route, vain
  round.memory = recall(queue)
  repeat
    id, record, start = first_waiting(queue, round)
    if not id then return false end
    route, vain = best_route{routes = record.routes, closed = round.closed, hold = terms.hold,
      is_narrow = narrow_applies(queue, #round.tickets > 1), background = queue.background, target = record.target,
      work_share = record.work_share, ahead_of_cells = is_ahead(queue, start)}
    if not route then
      if not terms.divided then
        round.memory.vain_looks[id], round.memory.added = vain, round.memory.added + 1
      end
      if round.looked_at_count >= PASSED_OVER_MAX or not may_pass_over(round) then return false end
      round.looked_at_count = round.looked_at_count + 1
      pass_over(round, record.tenant)
    end
  until route
  record, round.tenant, round.tenants = read(id), nil, nil
  with_tenant(queue, record.tenant, function()
    call('ZREM', queue.tickets, ticket_of(id, record))
    return give_turn(queue, record, start)
  end)
  record.worker, record.tokens, record.routes = route[WORKER], route[UNCACHED], nil
  add_load(record)
  if id == mine then
    record.state = 'placed'
  else
    record.state = 'granted'
    call('ZADD', grants, now + CLAIM_MS, id)
    call('XADD', turns, 'MAXLEN', '~', TURNS_MAX, '*', 'turn', id)
  end
  write(id, record)
  return true
end

-- Returns whether requests wait in queues that go before this one.
local function requests_wait_before(queue)
  if not queue.background then return false end
  for _, other in ipairs(queues) do
    if not other.background and waiting_tenants(other) > 0 then return true end
  end
  return false
end

-- Orders queues by when they last granted a turn, then by their position in the call.
local function by_last(one, other)
  if one.last == other.last then return one.position < other.position end
  return one.last < other.last
end

-- Returns the queues that may grant a turn, each with a new `round`, first those that granted one longest ago; and the
-- number of the last turn.
local function in_turn(background)
  local found, last = {}, 0
  for i, queue in ipairs(queues) do
    if queue.background == background and waiting_tenants(queue) > 0 and not requests_wait_before(queue) then
      local round = {passed_over = {}, passed_over_count = 0, looked_at_count = 0, tenants_done = 0, closed = {}}
      local granted = tonumber(call('HGET', queue.meta, 'g') or '0')
      found[#found + 1] = {position = i, queue = queue, round = round, last = granted}
      last = math.max(last, found[#found].last)
    end
  end
  table.sort(found, by_last)
  return found, last
end

-- Grants turns while workers have room. Several queues grant one turn each in rotation, so that a model with very many
-- requests does not keep another one from the workers that both use. After GRANTS_MAX turns the caller is asked to call
-- again at once.
local function grant(mine)
  local given = 0
  for _, background in ipairs({false, true}) do
    local left, last = in_turn(background)
    local several = #left > 1
    while left[1] and given < GRANTS_MAX do
      local each = table.remove(left, 1)
      if grant_one(each.queue, mine, each.round) then
        given = given + 1
        left[#left + 1] = each
        if several then
          last = last + 1
          call('HSET', each.queue.meta, 'g', last)
        end
      end
    end
  end
  more = given == GRANTS_MAX
end
