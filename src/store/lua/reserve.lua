-- How jobs are created and wait, and how attempts start: PUT, WAIT and RESERVE, same as in store/ledger_jobs.c.
local function head_of(j)
  return j.id .. job_packed(j)
end

-- The parts of an answer about the node's counters and the job.
local function counts_and_head(answer)
  local n = answer.node
  local mark = not n and '0' or resources.left(n) ~= '' and '2' or '1'
  return mark .. (n and node_counts(n) or '') .. (answer.job and head_of(answer.job) or '')
end

local keys = {} -- Idempotency-Keys

-- An Idempotency-Key: "job fingerprint node", the node of attempt 1 or nothing.
function keys.get(text)
  local kept = U.idems[text]
  if kept == nil then
    kept = call('GET', KEY .. 'k:' .. text)
    U.idems[text] = kept
  end
  if not kept then return nil end
  return string.match(kept, '^(%S+) (%S+) (.*)$')
end

function keys.set(text, job, fingerprint, node)
  U.idems[text] = job .. ' ' .. fingerprint .. ' ' .. node
  U.dirty_idems[text] = true
end

function keys.drop(text)
  U.idems[text] = false
  U.dirty_idems[text] = true
end

local function write_idems()
  for text in pairs(U.dirty_idems) do
    local kept = U.idems[text]
    if not kept then
      call('UNLINK', KEY .. 'k:' .. text)
    else
      call('SET', KEY .. 'k:' .. text, kept)
    end
  end
end

-- Creates the job with this key, which is kept as long as the job.
function keys.give(j, op, node)
  j.has_key = true
  job_beside(j, ':k', op.idem)
  keys.set(op.idem, j.id, op.fingerprint, node)
end

-- The key the job was created with.
function keys.of(j)
  return j.has_key and outside_text(j, ':k')
end

local job_new, note_session, write_sessions, take_back
do
-- The job as in the first answer, without what happened to it since.
local function first_answer(j, node)
  local first = {}
  for name, value in pairs(j) do first[name] = value end
  first.state = node ~= '' and DISPATCHED or NEW
  first.attempt, first.lease, first.due, first.ended = 1, NONE, 0, 0
  first.lane, first.priority = NO_LANE, 0
  first.reason, first.node, first.gpus, first.packed = '', node, '', nil
  return first
end

-- If the key was used for another job: answers that job's first answer, or a refusal.
local function answered_by_key(op, answer)
  if not op.idem then return false end
  local job, fingerprint, node = keys.get(op.idem)
  if not job or job == op.job then return false end
  local j = job_get(job)
  if not j then return false end
  if fingerprint ~= op.fingerprint then
    answer.err, answer.job = ERR.IDEMPOTENCY, j
    return true
  end
  answer.job, answer.duplicate = first_answer(j, node), 1
  if not is_final(j) and not outside_text(j, ':a') then
    job_beside(j, ':a', '1')
    job_changed(j)
  end
  return true
end

local function may_create(op, answer)
  if op.job == '' or op.attempt > 1 or not op.spec then
    answer.err = ERR.NOT_FOUND
  elseif op.max < 1 or op.max > ATTEMPTS_MAX or #op.type > LIMIT.TYPE or op.demand == PACKED.UNREADABLE then
    answer.err = ERR.BAD_FIELD
  elseif U.full == FULL then
    answer.err = ERR.STORE_FULL
  end
  return answer.err == ERR.OK
end

function job_new(id, about)
  local j = { -- missing fields are false; with one more field the table would be reallocated
    id = id, state = NEW, lease = NONE, attempt = 1, max = about.max,
    callback = about.callback and CALLBACK.WANTED or CALLBACK.NONE, ran_out = NONE, apart = false,
    place = AT_NOWHERE, told = 0, epoch = 0, owner = about.owner, created = U.now,
    updated = U.now, dispatched = 0, acked = 0, ended = 0, due = 0, timeout = about.timeout,
    timed = about.timeout > 0 and 1 or 0,
    run_until = 0, filed = 0, node = '', type = about.type, reason = '', result = '',
    lane = NO_LANE, priority = 0, demand = about.demand or '', gpus = '',
  }
  job_beside(j, ':s', about.spec)
  U.jobs[id] = j
  job_changed(j)
  job_listed(id)
  return j
end

local function create(op)
  return job_new(op.job, op)
end

-- Which pool and language pair a session used last: "version updated pool\npair".
function note_session(session, pool, lang_pair)
  if not session then return end
  local kept = U.sessions[session]
  if kept == nil then kept = call('GET', KEY .. 's:' .. session) end
  local version, updated, rest = 0, nil, nil
  if kept then
    version, updated, rest = string.match(kept, '^(%d+) (%-?%d+) (.*)$')
    version, updated = tonumber(version), tonumber(updated)
  end
  local now_used = pool .. '\n' .. lang_pair
  local refresh = U.retention / 2
  if rest == now_used and (refresh <= 0 or U.now - updated < refresh) then return end
  if rest ~= now_used then version = version + 1 end
  U.sessions[session] = version .. ' ' .. U.now .. ' ' .. now_used
  U.dirty_sessions[session], U.noted = true, true
end

function write_sessions()
  for id in pairs(U.dirty_sessions) do
    if U.retention > 0 then
      call('SET', KEY .. 's:' .. id, U.sessions[id], 'PX', U.retention)
    else
      call('SET', KEY .. 's:' .. id, U.sessions[id])
    end
  end
end

-- One text is cheaper to send than a list; redis_wire.c decodes it. Its first byte distinguishes it from the record of
-- a node.
local function placed_answer(answer)
  local why = answer.why or ''
  return char(ANSWER + answer.err, answer.duplicate, answer.probe, answer.chosen + 1, #why) .. why ..
    (answer.block and limits.block_text(answer.block) or '') .. counts_and_head(answer)
end

-- What blocks a job with this demand, now in the lane `from`, from waiting in the lane of `op`.
local function refusal(op, from, demand)
  local err, block = lanes.refusal(from, op), nil
  if err == ERR.OK and from == NO_LANE and op.bounds_keys then block = limits.queue_block(demand) end
  return block and ERR.LIMITED or err, block
end

local function may_wait(op, answer)
  if op.lane ~= NO_LANE then answer.err, answer.block = refusal(op, NO_LANE, op.demand) end
  return answer.err == ERR.OK
end

function rules.P(op)
  local answer = {err = ERR.OK, chosen = -1, duplicate = 0, probe = 0}
  if answered_by_key(op, answer) then return answer end
  local j = job_get(op.job)
  if j then
    answer.duplicate = 1
  elseif may_create(op, answer) and may_wait(op, answer) then
    j = create(op)
    j.due = later(U.clock, op.lane == NO_LANE and op.hold or op.wait)
    if op.lane ~= NO_LANE then lanes.enter(j, op) end
    job_place(j)
    if op.idem then keys.give(j, op, '') end
    note_session(op.session, op.pool, op.lang_pair)
  end
  answer.job = j
  return answer
end

local function may_start(j, attempt)
  if j.state == SELECTING then return attempt == j.attempt end
  local to, next_attempt = job_step(j.state, j.attempt, j.max, j.node, 'select', 0, nil)
  return to ~= nil and attempt == next_attempt
end

function verbs.W(op)
  local j, err, block = job_get(op.job), ERR.STALE, nil
  if not j then return {ERR.NOT_FOUND, false, false} end
  if may_start(j, op.attempt) then err, block = refusal(op, j.lane, j.demand) end
  if err == ERR.OK then
    lanes.enter(j, op)
    j.due, j.updated = later(U.clock, op.wait), U.now
    job_place(j)
  end
  return {err, head_of(j), false, block and limits.block_text(block)}
end

-- The same reserve again: answer as the first time.
local function answer_replay(op, j, answer)
  answer.job, answer.duplicate = j, 1
  for i = 1, #op.nodes do
    if op.nodes[i] == j.node then answer.chosen = i - 1 end
  end
  if j.lease ~= NONE then answer.node = holder_of(j) end
end

local function may_reserve(op, j, answer)
  if not j then return may_create(op, answer) end
  if (j.state == DISPATCHED or j.state == ACKED) and j.attempt == op.attempt then
    answer_replay(op, j, answer)
    return false
  end
  if may_start(j, op.attempt) then return true end
  answer.err, answer.job = ERR.STALE, j
  return false
end

-- The first candidate with enough slots, everything the job needs, and a breaker that admits this type. Returns it with
-- the job's GPUs, and the breaker if this is its probe.
local function first_fit(op, type, demand, answer)
  local why, d = '', demands.parse(demand)
  for i = 1, #op.nodes do
    local n = node_get(op.nodes[i])
    local reason, probe, gpus = WHY.NOT_READY, nil, ''
    if n and n.known then reason = lease_check(n, op.spares[i], d.slots) end
    if reason == WHY.OK and d.is_more then
      gpus = resources.fit(n, d)
      if not gpus then reason = WHY.RESOURCES end
    end
    if reason == WHY.OK then
      local allowed
      allowed, probe = breaker_allows(op.nodes[i], type, op.last)
      if not allowed then reason = WHY.BREAKER end
    end
    why = why .. reason
    if reason == WHY.OK then
      answer.chosen, answer.why = i - 1, why
      return n, gpus, probe
    end
  end
  answer.why = why
  return nil
end

-- Reserved and, in the record, already sent: DISPATCHED is the intent, written before anything is sent.
local function start(op, j, n, gpus)
  lanes.leave(j)
  if j.state ~= SELECTING then
    j.state, j.attempt = job_step(j.state, j.attempt, j.max, j.node, 'select', 0, nil)
  end
  j.state = DISPATCHED
  j.node, j.gpus, j.reason, j.owner = n.id, gpus, '', op.owner
  j.dispatched, j.acked, j.updated, j.run_until, j.pause = U.now, 0, U.now, 0, pause_mark()
  lease_take(n, j, op.ttl)
  job_place(j)
end

-- What its key returns from now on.
local function note_key(op, j, created)
  if created and op.idem then
    j.keyed = true
    keys.give(j, op, j.node)
  elseif not created and j.keyed and j.attempt == 1 then
    local text = keys.of(j)
    local job, fingerprint
    if text then job, fingerprint = keys.get(text) end
    if job == j.id then keys.set(text, job, fingerprint, j.node) end
  end
end

function rules.R(op)
  local answer = {err = ERR.OK, chosen = -1, duplicate = 0, probe = 0}
  if answered_by_key(op, answer) then return answer end
  local j = job_get(op.job)
  if not may_reserve(op, j, answer) then return answer end
  lapse_some(LIMIT.CLEAR)
  local demand = j and j.demand or op.demand
  answer.block = limits.block(demand)
  if answer.block then
    answer.err, answer.job = ERR.LIMITED, j
    return answer
  end
  local n, gpus, probe = first_fit(op, j and j.type or op.type, demand, answer)
  if not n then
    answer.err, answer.job = ERR.ALL_FULL, j
    return answer
  end
  local created = not j
  if created then j = create(op) end
  start(op, j, n, gpus)
  note_key(op, j, created)
  if probe then
    breaker_probe(probe, j)
    answer.probe = 1
  end
  note_session(op.session, op.pool, op.lang_pair)
  answer.job, answer.node = j, n
  return answer
end

function verbs.P(op)
  return placed_answer(rules.P(op))
end

function verbs.R(op)
  return placed_answer(rules.R(op))
end

-- Restores a run that its node holds and this store has lost, see is_recovering: either the whole job is gone but its
-- slot is still in use, or only its placement is and it is still waiting here. This may exceed the node's max here,
-- though the node itself never runs more. Returns the job, or nothing.
function take_back(node, id, attempt, ttl, send)
  local n = node and is_recovering() and node_get(node)
  if not n or not n.known or id == '' or attempt < 1 or attempt > ATTEMPTS_MAX then return nil end
  local j = job_get(id)
  if j then
    if not may_start(j, attempt) then return nil end
    start({ttl = ttl, owner = 0}, j, n, resources.fit(n, demands.parse(j.demand)) or '')
    note_key({}, j, false)
    if j.timeout > 0 then
      j.run_until = later(later(U.clock, j.timeout), ttl)
      if j.due > j.run_until then j.due = j.run_until end
    end
  else
    j = job_new(id, {max = attempt, owner = 0, timeout = 0, type = '', spec = '{"type":"restored"}'})
    j.attempt, j.node = attempt, n.id
    lease_take(n, j, ttl)
  end
  j.state, j.dispatched, j.acked = ACKED, send or U.now, U.now
  stamps.run(n, j)
  job_place(j)
  U.lost = U.lost + 1
  return j
end

end
