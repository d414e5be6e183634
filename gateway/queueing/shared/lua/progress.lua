-- Verb progress: a request has its first token, or has ended. Its worker has room again, and waiting requests get turns
-- (`grant` of turns.lua).

-- progress: the first token came, or the request has ended, in any state.
--   id, 'first' or 'end', units by which what was used differs from its cost
-- Outcome 1 {loads}, 0 there is no such request.
function verbs.progress(keys, args)
  if not begin(keys, args) then return {-2, -1, 0} end
  local id, first, change = next_arg(args), next_arg(args) == 'first', tonumber(next_arg(args))
  local record = read(id)
  if not first then remember_ended(id) end
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
