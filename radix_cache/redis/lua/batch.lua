-- batch: calls of many functions of these libraries, as one call.
--
-- keys  those of all calls, one call after the other
-- args  for each call the function's name, the number of its keys, the number of its arguments, and its arguments
-- Returns the answers. A call that fails gives an error as its answer, and the others are made all the same.
local function batch(keys, args)
  local answers, key, at = {}, 0, 1
  while at <= #args do
    local called, key_count, arg_count = functions[args[at]], tonumber(args[at + 1]), tonumber(args[at + 2])
    local its_keys, its_args = {}, {}
    for number = 1, key_count do its_keys[number] = keys[key + number] end
    for number = 1, arg_count do its_args[number] = args[at + 2 + number] end
    local done, answer = pcall(called, its_keys, its_args)
    if not done then
      answer = type(answer) == 'table' and {err = answer.err} or {err = 'ERR ' .. tostring(answer)}
    end
    answers[#answers + 1] = answer or false
    key, at = key + key_count, at + 3 + arg_count
  end
  return answers
end
