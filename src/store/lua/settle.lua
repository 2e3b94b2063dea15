-- How attempts and jobs end: ACK, FINISH and CALLBACK_DONE, same as in store/ledger_jobs.c.

-- A text, or a list that begins with it when the whole record is requested.
local function settled_answer(answer)
  local freed = answer.freed or ''
  local head = char(ANSWER + answer.err, answer.duplicate, answer.ended, answer.breaker, #freed)
  for i = 1, #freed do head = head .. char(#freed[i]) .. freed[i] end
  head = head .. counts_and_head(answer)
  if not answer.history then return head end
  return {head, answer.spec or false, answer.history, answer.result or false, answer.key or false}
end

local function new_answer()
  return {err = ERR.OK, duplicate = 0, ended = 0, breaker = EVENT.NONE}
end

-- The whole record, for the instance that continues the job.
local function answer_record(answer, j)
  answer.spec = outside_text(j, ':s')
  answer.result = j.result ~= '' and j.result
  if j.outside == 1 then answer.result = outside_text(j, ':r') end
  answer.history = job_history(j)
  if answer.history == '' then answer.history = '[]' end
  local key = keys.of(j)
  local owner, fingerprint
  if key then owner, fingerprint = keys.get(key) end
  if owner == j.id then answer.key = fingerprint .. ' ' .. key end
end

local write_callbacks
do
local function from_here(op, j)
  return op.attempt == j.attempt and op.node ~= nil and op.node == j.node
end

function rules.C(op)
  local answer = new_answer()
  local j = job_get(op.job)
  if not j or is_waiting(j) then
    -- Sent, then lost from the store. Its ACK may be repeated.
    local back = take_back(op.node, op.job, op.attempt, op.ttl, op.send ~= 0 and op.send or nil)
    if back then
      answer.job, answer.node = back, holder_of(back)
      return answer
    end
  end
  if not j then
    answer.err = ERR.NOT_FOUND
    return answer
  end
  lapse_one(j)
  local to = job_step(j.state, j.attempt, j.max, j.node, 'ack', op.attempt, op.node)
  local is_last = op.send == 0 or op.send == j.dispatched -- of the sends of this attempt
  local until_ms, run_until = later(U.clock, lease_term(j, op)), 0
  if j.timeout > 0 then
    run_until = later(later(U.clock, j.timeout), op.stop_grace)
    if until_ms > run_until then until_ms = run_until end
  end
  if is_last and to and j.lease == RESERVED_LEASE and not is_orphaned(j) then
    j.due, j.run_until = until_ms, run_until
    stamps.run(holder_of(j), j)
    j.state, j.acked, j.updated = to, U.now, U.now
    job_place(j)
  elseif is_last and j.state == ACKED and is_alive(j) and not is_orphaned(j) and from_here(op, j) then
    answer.duplicate = 1 -- a node that gets this may start, so it must have a slot
  else
    answer.err = ERR.STALE
  end
  if j.lease ~= NONE then answer.node = holder_of(j) end
  answer.job = j
  return answer
end

local UNKNOWN = 'OUTCOME_UNKNOWN' -- as in err.h
local STOPPED = 2 -- a lease ended whose job had been cancelled before

local function plain_json(reason)
  return reason == '' and 'null' or '"' .. reason .. '"'
end

-- A reservation without an ACK may never have been sent: its maker says so and gives it up, or was not present the
-- whole time since. Then a last attempt is not used up; any other attempt is followed by the next one.
local function is_unsent(op, j)
  if j.state ~= DISPATCHED then return false end
  if op.outcome == OUTCOME.ABANDON then return op.owner == j.owner and outside_text(j, ':a') end
  if op.outcome ~= OUTCOME.EXPIRE or j.attempt < j.max then return false end
  return (j.pause or 0) ~= pause_mark() or is_silent(j.owner)
end

-- Whatever reservation its owner had made.
local function takes_back(op)
  return op.outcome == OUTCOME.SEND_FAILED and not op.node
end

local function verdict_of(op, j)
  local ending = machine.endings[op.outcome]
  local v = {
    event = ending.event, of_attempt = ending.of_attempt, in_time = is_alive(j),
    reason = op.reason, reason_json = op.reason_json, speaks = op.speaks,
    -- If this ends the job, its requester was or will be answered with an error.
    frees_key = op.outcome == OUTCOME.ABANDON or
      (op.outcome == OUTCOME.SEND_FAILED and j.keyed and j.attempt == 1),
  }
  if op.reason == '' or op.outcome == OUTCOME.DONE then
    v.reason, v.reason_json = ending.reason, plain_json(ending.reason)
  end
  if op.outcome == OUTCOME.EXPIRE then
    v.in_time = not v.in_time or is_orphaned(j)
    v.reason, v.speaks = ending.reason, false
    if j.state == ACKED or j.lease == RUNNING_LEASE or j.ran_out == RUNNING_LEASE then
      v.event = 'run_timeout'
      v.speaks = j.run_until ~= 0 and U.clock >= j.run_until
      v.reason = v.speaks and REASON.RUN_TIMEOUT or REASON.NODE_LOST
    end
    v.reason_json = plain_json(v.reason)
  end
  -- A reservation may be taken back this way even after it has expired.
  if not v.of_attempt or takes_back(op) then v.in_time = true end
  -- By now it may have been reserved and be held since, or be waiting again.
  if op.outcome == OUTCOME.QUEUE_TIMEOUT then v.in_time = j.lane ~= NO_LANE and j.due <= U.clock end
  if is_unsent(op, j) then
    v.event, v.unsent, v.frees_key = 'send_failed', true, false
    v.reason, v.reason_json = UNKNOWN, plain_json(UNKNOWN)
  end
  return v
end

-- Asks the job state machine. The record says DISPATCHED before the send, so a failed send is judged as RESERVED; a
-- waiting job without a candidate is judged as SELECTING.
local function ask(op, j, v)
  local state, attempt = j.state, j.attempt
  local left = op.left or v.unsent
  if takes_back(op) and op.owner ~= j.owner then return nil end
  if v.event == 'send_failed' and state == DISPATCHED then state = RESERVED end
  if v.of_attempt then
    return job_step(state, attempt, j.max, j.node, v.event, op.attempt, op.node, left)
  end
  local named = op.attempt
  if state == RETRYING and named == attempt + 1 then named = attempt end
  if named ~= 0 and named ~= attempt then return nil end
  if v.event == 'no_candidate' and state ~= SELECTING then
    local to, next_attempt = job_step(state, attempt, j.max, j.node, 'select', 0, nil)
    if to then state, attempt = to, next_attempt end
  end
  return job_step(state, attempt, j.max, j.node, v.event, 0, nil, left)
end

-- What the end of this attempt says about the node. For a job cancelled while running only a success counts.
local function word_of(j, v)
  if v.event == 'done' then return v.speaks and 'good' or nil end
  if (v.event ~= 'fail' and v.event ~= 'run_timeout') or is_final(j) then return nil end
  return v.speaks and 'bad' or nil
end

-- The node never began it, so it consumes no rate.
local function never_began(op, j)
  local outcome = op.outcome
  return j.state == DISPATCHED and
    (outcome == OUTCOME.REFUSED or outcome == OUTCOME.SEND_FAILED or outcome == OUTCOME.ABANDON)
end

local function end_attempt(op, answer, j, v)
  if j.lease ~= NONE then
    local n = holder_of(j)
    lease_end(n, j)
    answer.node, answer.ended = n, 1
    lease_unbind(n, j)
  elseif j.ran_out ~= NONE then
    answer.ended = 1 -- it was cleared earlier and is settled now
  end
  if j.demand ~= '' then
    if op.hold_key then limits.hold_longer(op.hold_key, op.hold_key_ms, op.hold_reason) end
    if never_began(op, j) then limits.undo(j) end
    answer.freed = limits.freed(j)
  end
  answer.breaker = breaker_settle(j, word_of(j, v))
  j.ran_out = NONE
  history_add(j, v.event, v.reason_json)
end

local function become_final(j, v)
  j.ended = U.now
  if j.lease == NONE then j.due = 0 end
  if j.callback == CALLBACK.WANTED then
    j.callback = CALLBACK.PENDING
    U.callbacks[j.id] = true
  end
  if v.frees_key then
    local text = keys.of(j)
    if text and keys.get(text) == j.id then keys.drop(text) end
  end
end

local function become_waiting(op, j)
  j.owner, j.due = op.owner, later(U.clock, op.hold)
  if j.state ~= SELECTING then return end
  j.node, j.gpus, j.dispatched, j.acked = '', '', 0, 0 -- same attempt, but on no node
end

local function job_result(j, result)
  if not result then return end
  if #result <= LIMIT.RESULT then
    j.result = result
  else
    j.outside = 1
    job_beside(j, ':r', result)
  end
end

-- The full name of the key that a FAIL holds, if it is one of the job's: nodes know it without its namespace.
local function own_key(j, key)
  local keys = demands.keys(j)
  for i = 1, #keys do
    if keys[i] == key or string.match(keys[i], '/(.*)$') == key then return keys[i] end
  end
  return nil
end

local function take(op, answer, j, v, to, attempt, effect)
  local ran_out = not is_waiting(j) and not is_alive(j)
  lanes.leave(j)
  if effect or ran_out then end_attempt(op, answer, j, v) end
  j.state, j.attempt, j.updated, j.reason = to, attempt, U.now, v.reason
  if is_final(j) then
    become_final(j, v)
    if v.event == 'done' or v.event == 'fail' then job_result(j, op.result) end
  else
    become_waiting(op, j)
  end
  job_place(j)
end

-- The job was cancelled while it ran: this is the node's report that it stopped, or the end of its lease. The job keeps
-- the state the cancel gave it.
local function ends_cancelled(op, j, v)
  if not is_final(j) or is_over(j) or not v.in_time then return false end
  if op.outcome == OUTCOME.EXPIRE then return op.attempt == 0 or op.attempt == j.attempt end
  return (op.outcome == OUTCOME.DONE or op.outcome == OUTCOME.FAIL) and from_here(op, j)
end

local function end_cancelled(op, answer, j, v)
  end_attempt(op, answer, j, v)
  job_result(j, op.result)
  answer.ended = STOPPED
  j.due, j.updated = 0, U.now
  job_place(j)
end

-- Was this message accepted before? Ended attempts are in the list; for the end of a whole job only its reason is
-- stored.
local function is_repeated(op, j, v)
  if not v.of_attempt then return j.state == FAILED and v.reason == j.reason end
  if op.outcome == OUTCOME.EXPIRE then
    return history_has(j, op.attempt, op.node, 'ack_timeout') or
      history_has(j, op.attempt, op.node, 'run_timeout')
  end
  return history_has(j, op.attempt, op.node, v.event)
end

-- The end of a job that is unknown, or not known to be placed: another one that was lost, see take_back.
local function told_of(op)
  if op.outcome ~= OUTCOME.DONE and op.outcome ~= OUTCOME.FAIL then return nil end
  return take_back(op.node, op.job, op.attempt, AWAY_GRACE_MS)
end

-- The first requester was refused, but another request was answered with this job: it goes on, and any instance may
-- take it. In a lane it will be found.
local function goes_on(op, j)
  if op.outcome ~= OUTCOME.ABANDON or not outside_text(j, ':a') then return false end
  if is_waiting(j) and j.lane == NO_LANE then
    j.due = U.clock
    job_place(j)
  end
  return true
end

function rules.F(op)
  local answer = new_answer()
  local j = job_get(op.job)
  if not j or is_waiting(j) then j = told_of(op) or j end
  if not j then
    answer.err = ERR.NOT_FOUND
    return answer
  end
  local node = j.node
  lapse_one(j)
  local v, max = verdict_of(op, j), j.max
  local full_key = op.hold_key and own_key(j, op.hold_key)
  local is_stranger = op.hold_key and not full_key
  op.hold_key = full_key
  -- It hit a limit of this key, which is held from now on: the attempt does not count.
  if full_key and max < ATTEMPTS_MAX then j.max = max + 1 end
  local to, attempt, effect = ask(op, j, v)
  if not to or not v.in_time then j.max = max end
  if to and not v.unsent and goes_on(op, j) then
    answer.err = ERR.STALE
  elseif is_stranger and ((to and v.in_time) or ends_cancelled(op, j, v)) then
    answer.err = ERR.BAD_FIELD
  elseif to and v.in_time then
    take(op, answer, j, v, to, attempt, effect)
  elseif ends_cancelled(op, j, v) then
    end_cancelled(op, answer, j, v)
  elseif is_repeated(op, j, v) then
    answer.duplicate = 1
  else
    answer.err = ERR.STALE
  end
  answer.job = j
  local n = node ~= '' and node_get(node)
  if n then answer.node = n end
  if answer.err == ERR.OK and
    (op.want_record or (is_waiting(j) and answer.duplicate == 0)) then
    answer_record(answer, j)
  end
  return answer
end

function verbs.C(op)
  return settled_answer(rules.C(op))
end

function verbs.F(op)
  return settled_answer(rules.F(op))
end

function verbs.K(op)
  local j = job_get(op.job)
  if not j then return {ERR.NOT_FOUND, false, false} end
  local err = ERR.OK
  if j.callback == CALLBACK.PENDING then
    j.callback = op.given_up and CALLBACK.GIVEN_UP or CALLBACK.SENT
    j.updated = U.now
    U.callbacks[j.id] = false
    call('HDEL', KEY .. 'claims', j.id)
    job_changed(j)
  elseif j.callback < CALLBACK.PENDING then
    err = ERR.CONFLICT -- no callback was requested, or the job is still running
  end
  return {err, head_of(j), false}
end

function write_callbacks()
  local add, del = {}, {}
  for id, pending in pairs(U.callbacks) do
    if pending then
      add[#add + 1] = 0
      add[#add + 1] = id
    else
      del[#del + 1] = id
    end
  end
  if #add > 0 then call_in_parts('ZADD', KEY .. 'callbacks', add, 2) end
  if #del > 0 then call_in_parts('ZREM', KEY .. 'callbacks', del) end
end

end
