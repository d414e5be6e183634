-- Verb progress: a request has its first token, or has ended. Its worker has room again, and waiting requests get turns
-- (`grant` of turns.lua).

local SWEEP_MS = 1000

-- When ids that have ended were last removed from `ended`, in ms.
local ended_swept = 0

-- progress: the first token came, or the request has ended, in any state.
--   id, 'first' or 'end', units by which what was used differs from its cost
-- Outcome 1 {loads}, 0 there is no such request.
function verbs.progress(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local id, first, change = next_arg(args), next_arg(args) == 'first', tonumber(next_arg(args))
  local record = read(id)
  if not first then
    -- Not at every end: to remember an id for longer does no harm.
    if now < ended_swept or now - ended_swept >= SWEEP_MS then
      ended_swept = now
      call('ZREMRANGEBYSCORE', ended, '-inf', now)
    end
    call('ZADD', ended, now + ENDED_MS, id)
  end
  if not record then return reply(0, {}) end
  if first then
    if record.state == 'placed' then
      change_load(record.worker, -record.tokens, 0, 0)
      record.state = 'answering'
      write(id, record)
    end
  else
    drop(id, record, change)
  end
  grant()
  return reply(1, loads_of(record.worker and {record.worker} or {}))
end
