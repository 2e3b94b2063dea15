-- The job state machine of model/job.c; `machine` has its table. An edge: its target, the condition for it, the target
-- otherwise, the effect on the lease, and whether the next attempt begins.
local job_step
do
local by_node = machine.by_node -- events that must name the job's attempt and node

local function concerns(node, attempt, event, in_attempt, in_node)
  if by_node[event] and (in_attempt == 0 or not in_node or node == '') then return false end
  if in_attempt ~= 0 and in_attempt ~= attempt then return false end
  return not in_node or node == '' or in_node == node
end

-- The result of the event: state, attempt, effect; nil when it does not fit.
function job_step(state, attempt, max, node, event, in_attempt, in_node, candidates_left)
  local edge = machine.edges[state][event]
  if not edge or not concerns(node, attempt, event, in_attempt, in_node) then return nil end
  local enough = true
  if edge.need == 'attempts' then enough = attempt < max end
  if edge.need == 'candidates' then enough = candidates_left end
  local to = enough and edge.to or edge.otherwise
  if not to then return nil end
  if edge.next then attempt = attempt + 1 end
  return to, attempt, edge.effect
end

end

local function is_final(j)
  return j.state == DONE or j.state == FAILED
end

local function is_waiting(j)
  return j.state == NEW or j.state == SELECTING or j.state == RETRYING
end

-- The job is final and nothing will change it.
local function is_over(j)
  return is_final(j) and j.lease == NONE and j.ran_out == NONE
end

local function is_alive(j)
  return j.lease ~= NONE and U.clock < j.due
end

-- The list of ended attempts: the same text as store/ledger_jobs.c writes.

local job_history, job_beside, history_add, history_has
do
local function quoted(text)
  return '"' .. string.gsub(text, '[\\"]', '\\%0') .. '"'
end

local function history_entry(j, event, reason_json, now)
  return '{"attempt_id":' .. j.attempt .. ',"node_id":' .. quoted(j.node) ..
    ',"outcome":"' .. event .. '","reason":' .. reason_json ..
    ',"dispatched_ms":' .. j.dispatched ..
    ',"acked_ms":' .. (j.acked ~= 0 and j.acked or 'null') .. ',"ended_ms":' .. now .. '}]'
end

-- Most jobs have none until they are done, and then the record has everything needed.
function job_history(j)
  if j.told == 0 then return '' end
  if j.history == nil then
    if j.told == TOLD_DONE then
      j.history = '[' .. history_entry(j, 'done', 'null', j.ended)
    else
      j.history = outside_text(j, ':h') or ''
    end
  end
  return j.history
end

-- The attempts stored in a separate field.
function job_beside(j, tail, text)
  j.new = j.new or {}
  j.new[tail] = text
end

function history_add(j, event, reason_json)
  if j.told == 0 and event == 'done' and not is_final(j) then
    j.told = TOLD_DONE -- it ends now: see job_history
    return
  end
  local kept = job_history(j)
  local entry = history_entry(j, event, reason_json, U.now)
  kept = kept == '' and '[' .. entry or sub(kept, 1, -2) .. ',' .. entry
  while #kept > LIMIT.HISTORY do
    -- Quotes inside strings are escaped, so this finds the start of the second entry.
    local at = find(kept, '},{"attempt_id":', 1, true)
    kept = at and '[' .. sub(kept, at + 2) or ''
  end
  j.history, j.told = kept, TOLD_TEXT
  job_beside(j, ':h', kept)
end

-- Did this attempt end with this outcome? Without a node: on any node.
function history_has(j, attempt, node, event)
  local from = '{"attempt_id":' .. attempt .. ',"node_id":'
  local rest = ',"outcome":"' .. event .. '",'
  local kept = job_history(j)
  if node then return find(kept, from .. quoted(node) .. rest, 1, true) ~= nil end
  local at = 1
  while true do
    local _, to = find(kept, from, at, true)
    if not to then return false end
    local close = find(kept, '"' .. rest, to + 1, true)
    local comma = find(kept, ',', to + 1, true)
    if close and comma == close + 1 then return true end
    at = to + 1
  end
end

end
