-- The tenants that wait in a queue, in fair order: their tickets, start tags and finish tags, and the virtual time.
-- The order is made here, by the start tags that enqueue, correct and give_turn set; first_waiting of turns.lua reads
-- the first of it.
--
-- One gateway alone does this in policies/queueing/sfq.py: enqueue and correct here are arrive and correct of Sfq,
-- whose `next` chooses a request, as first_waiting does, and charges its tenant, as give_turn does. Only here the
-- tickets of a tenant are in the order of their numbers, and turns have bounds (is_ahead, by policies/cell_turns.py).

local FINISH_MAX = 10000

-- Returns the name of a ticket in `tickets`, which are in the order of their names.
local function ticket_of(id, record)
  return record.tenant .. '\0' .. string.format('%016d', record.number) .. '\0' .. id
end

-- Returns the first `count` tickets of a tenant.
local function tickets_of(queue, tenant, count)
  return call('ZRANGEBYLEX', queue.tickets, '[' .. tenant .. '\0', '(' .. tenant .. '\1', 'LIMIT', 0, count)
end

-- Returns the member of `active` for a tenant with this first ticket: its number, and the tenant.
local function member(ticket, tenant)
  return ticket and string.sub(ticket, #tenant + 2, #tenant + 17) .. '\0' .. tenant
end

-- Returns the virtual time, and the largest start tag that may take a worker which is not idle; read once in a call. The
-- fields of `meta` are explained in call.lua.
local function virtual_time(queue)
  if not queue.virtual_time then
    local v, start_max, ends, memory = unpack(call('HMGET', queue.meta, 'v', 's', 'u', 'm'))
    queue.virtual_time = tonumber(v or '0')
    queue.start_max = start_max and now < tonumber(ends) and tonumber(start_max) or math.huge
    queue.searched_here = memory == memory_name
  end
  return queue.virtual_time, queue.start_max
end

-- Returns whether a turn with this start tag is too far ahead of other cells for a worker that is not idle.
local function is_ahead(queue, start)
  local _, start_max = virtual_time(queue)
  return start > start_max
end

-- Returns the finish tag of a tenant, read once in a call.
local function finish_of(queue, tenant)
  if not queue.finishes[tenant] then queue.finishes[tenant] = tonumber(call('ZSCORE', queue.finish, tenant) or '') end
  return queue.finishes[tenant] or (virtual_time(queue))
end

local function finish_at(queue, tenant, tag)
  -- The same number that a later call reads: text keeps all its digits.
  queue.finishes[tenant] = tag
  if call('ZADD', queue.finish, text(tag), tenant) == 1 and call('ZCARD', queue.finish) > FINISH_MAX then
    call('ZREMRANGEBYRANK', queue.finish, 0, 99)
    queue.finishes = {}
  end
end

-- Returns how many tenants wait, read once until that changes.
local function waiting_tenants(queue)
  if not queue.waiting then queue.waiting = call('ZCARD', queue.active) end
  return queue.waiting
end

-- Lets `how` change a tenant's tickets or tag, and changes the tenant's place in the order accordingly. `how` gets the
-- start tag, and returns the new one.
local function with_tenant(queue, tenant, how)
  local before = tickets_of(queue, tenant, 1)[1]
  local start = before and tonumber(call('ZSCORE', queue.active, member(before, tenant)))
  local tag = how(start)
  local after = tickets_of(queue, tenant, 1)[1]
  if before and before ~= after then call('ZREM', queue.active, member(before, tenant)) end
  if after then call('ZADD', queue.active, text(tag), member(after, tenant)) end
  if remembered[queue.meta] then remembered[queue.meta].tickets[tenant] = nil end
  queue.waiting = nil
end

local function enqueue(queue, id, record)
  with_tenant(queue, record.tenant, function(start)
    call('ZADD', queue.tickets, 0, ticket_of(id, record))
    if start then return start end
    local tag = math.max((virtual_time(queue)), finish_of(queue, record.tenant))
    finish_at(queue, record.tenant, tag)
    return tag
  end)
end

local function dequeue(queue, id, record)
  with_tenant(queue, record.tenant, function(start)
    call('ZREM', queue.tickets, ticket_of(id, record))
    return start
  end)
end

-- Changes the cost that a tenant is charged, and so its next start tag.
local function correct(queue, record, cost_change)
  if waiting_tenants(queue) == 0 then
    finish_at(queue, record.tenant, finish_of(queue, record.tenant) + cost_change / record.weight)
    return
  end
  with_tenant(queue, record.tenant, function(start)
    local tag = (start or finish_of(queue, record.tenant)) + cost_change / record.weight
    finish_at(queue, record.tenant, tag)
    return start and tag
  end)
end

-- Charges a tenant with the turn that starts at this tag; returns its next start tag.
local function give_turn(queue, record, start)
  if start > virtual_time(queue) then
    queue.virtual_time = start
    call('HSET', queue.meta, 'v', text(start))
  end
  local tag = start + record.cost / record.weight
  finish_at(queue, record.tenant, tag)
  return tag
end
