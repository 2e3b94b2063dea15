-- One call, many verbs. KEYS: the nodes, and a key that never exists: while the slot moves to another
-- master, Redis then answers TRYAGAIN instead of showing a half of it. ARGV: the head of the batch,
-- then the ops one after the other, each read by its row of `readers`.
local A, at -- ARGV and where we stand in it

local function text()
  at = at + 1
  return A[at]
end

local function number()
  at = at + 1
  return tonumber(A[at])
end

local function texts(count)
  local list = {}
  for i = 1, count do list[i] = text() end
  return list
end

local function has(flags, letter)
  return find(flags, letter, 1, true) ~= nil
end

local readers = {}

local NO_JOB = 'j0000000000000'

local function job_named(id)
  return id == NO_JOB and '' or id
end

-- Numbers come packed, see redis_wire.c: a text for each would cost more than the work.
local PUT = '<c14BBBBBi8i4i4i8i8i8i8Bi4i4i4i4'

local function read_put()
  local job, has_spec, has_type, has_idem, has_session, callback, not_after, attempt, max, timeout,
    owner, hold, ttl, count, spare1, spare2, spare3, spare4 = unpack_struct(PUT, text())
  local op = {
    job = job_named(job), not_after = not_after, attempt = attempt, max = max, timeout = timeout,
    owner = owner, hold = hold, ttl = ttl, callback = callback == 1, spec = nil, type = '',
    idem = nil, fingerprint = nil, session = nil, pool = nil, lang_pair = nil, verb = nil,
    nodes = nil, spares = {spare1, spare2, spare3, spare4},
  }
  if has_spec == 1 then op.spec = text() end
  if has_type == 1 then op.type = text() end
  if has_idem == 1 then
    op.idem = text()
    op.fingerprint = text()
  end
  if has_session == 1 then
    op.session = text()
    op.pool = text()
    op.lang_pair = text()
  end
  if count == 4 then
    op.nodes = {A[at + 1], A[at + 2], A[at + 3], A[at + 4]}
    at = at + 4
  else
    op.nodes = texts(count)
  end
  return op
end

readers.P = read_put
readers.R = read_put

local COMMIT, FINISH = '<c14Bi8i4i8i8', '<c14BBBBBBBi8i4i8i8'

function readers.C()
  local job, has_node, not_after, attempt, running_ttl, stop_grace = unpack_struct(COMMIT, text())
  return {
    job = job_named(job), not_after = not_after, attempt = attempt, running_ttl = running_ttl,
    stop_grace = stop_grace, node = has_node == 1 and text() or nil, verb = nil,
  }
end

function readers.F()
  local job, has_node, has_result, has_reason, left, want_record, blames, outcome, not_after,
    attempt, owner, hold = unpack_struct(FINISH, text())
  return {
    job = job_named(job), not_after = not_after, attempt = attempt, owner = owner, hold = hold,
    left = left == 1, want_record = want_record == 1, blames = blames == 1, outcome = outcome,
    node = has_node == 1 and text() or nil, result = has_result == 1 and text() or nil,
    reason = has_reason == 1 and text() or '', reason_json = has_reason == 1 and text() or 'null',
    verb = nil,
  }
end

function readers.N()
  local op = {node = text(), ttl = number(), all = text() == '1', runs = {}, attempts = {}}
  for i = 1, number() do
    op.runs[i] = text()
    op.attempts[i] = number()
  end
  return op
end

function readers.H()
  local op = {owner = number(), hold = number()}
  op.ids = texts(number())
  return op
end

function readers.A()
  return {job = text(), owner = number(), hold = number()}
end

function readers.D()
  return {max = number()}
end

function readers.M()
  local op = {node = text()}
  local flags = text()
  op.own, op.health, op.max, op.admin, op.if_epoch = number(), number(), number(), number(), number()
  if has(flags, 'f') then op.facts = text() end
  op.set_admin, op.new_epoch = has(flags, 'a'), has(flags, 'e')
  op.admin_reason = op.set_admin and text() or ''
  return op
end

function readers.X()
  return {node = text()}
end

function readers.K()
  return {job = text(), given_up = text() == '1'}
end

function readers.B()
  return {}
end

function readers.Z()
  return {node = text(), type = text()}
end

function readers.I()
  return {version = text(), running_ttl = number()}
end

function readers.Y()
  return {version = text()}
end

function readers.L()
  return {owner = number()}
end

function readers.T()
  return {jobs_max = number()}
end

function readers.S()
  return {to = text(), text = text()}
end

function readers.U()
  return {node = text(), kind = text(), incarnation = text()}
end

function readers.E()
  local op = {text = text()}
  op.seen = texts(2 * number())
  return op
end

function readers.V()
  return {job = text(), hold = number()}
end

local function server_now()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + (tonumber(time[2]) - tonumber(time[2]) % 1000) / 1000
end

-- What every call reads and writes is one field: now, order, lapse_seq, version, gate_count,
-- open_count, generation, newest bucket. redis_nodes.c looks at the order.
local STATE = '<i8i8i8i8i8i8ss'

local function begin_batch(now, gen)
  local last, order, lapse_seq, version, gate_count, open_count, bucket = nil, 0, 0, 0, 0, 0, ''
  local packed = call('HGET', KEY .. 'meta', 'state')
  if packed then
    last, order, lapse_seq, version, gate_count, open_count, gen, bucket =
      unpack_struct(STATE, packed)
  end
  U = {
    now = now, last = last, jobs = {}, dirty = {}, nodes = {}, dirty_nodes = {},
    due = {}, lapsed = {}, gates = {}, dirty_gates = {}, idems = {}, dirty_idems = {},
    sessions = {}, dirty_sessions = {}, callbacks = {}, told = {}, none_ripe = false,
    order = order, lapse_seq = lapse_seq, version = version, gate_count = gate_count,
    open_count = open_count, bucket = bucket, gen = gen, instance = nil, retention = nil,
    threshold = nil, cooldown = nil,
  }
end

local function read_ops(count)
  local ops, jobs, nodes = {}, {}, {}
  for i = 1, count do
    local verb = text()
    local op = readers[verb]()
    op.verb = verb
    op.not_after = op.not_after or number()
    ops[i] = op
    if op.job then jobs[#jobs + 1] = op.job end
    if op.runs then for k = 1, #op.runs do jobs[#jobs + 1] = op.runs[k] end end
    if op.ids then for k = 1, #op.ids do jobs[#jobs + 1] = op.ids[k] end end
    if op.node then nodes[#nodes + 1] = op.node end
    if op.nodes and op.nodes[1] then nodes[#nodes + 1] = op.nodes[1] end
  end
  jobs_prefetch(jobs)
  nodes_prefetch(nodes)
  return ops
end

local function end_batch(count)
  write_due()
  write_lapsed()
  write_jobs()
  write_nodes()
  if next(U.dirty_gates) then write_gates() end
  if next(U.dirty_idems) then write_idems() end
  if next(U.dirty_sessions) then write_sessions() end
  if next(U.callbacks) then write_callbacks() end
  publish_nodes()
  call('HSET', KEY .. 'meta', 'state', pack(STATE, U.now, U.order + count, U.lapse_seq, U.version,
    U.gate_count, U.open_count, U.gen, U.bucket))
end

-- ARGV: now (only a library loaded for tests looks at it), the store time after which nothing may
-- change any more, the instance's name, a name for a new generation, retention, breaker threshold and
-- cooldown, and the number of ops.
-- Answers {now, order of the first op - 1, generation, open breakers, answers...}.
local function batch(keys, args)
  begin_library()
  A, at = args, 0
  local now = number()
  if not TEST_CLOCK then now = server_now() end
  local late = number()
  local instance, gen, retention, threshold, cooldown = text(), text(), number(), number(), number()
  local count = number()
  if late > 0 and now > late then return {now, 'LATE'} end
  begin_batch(now, gen)
  U.instance, U.retention, U.threshold, U.cooldown = instance, retention, threshold, cooldown
  local ops = read_ops(count)
  if not (ops[1] and ops[1].verb == 'I' and not others_live()) then pass_time(U.last) end
  local answers = {now, U.order, U.gen, 0}
  for i = 1, count do
    local op = ops[i]
    if op.not_after > 0 and now > op.not_after then
      answers[i + 4] = {ERR.TOO_LATE, false, false}
    else
      answers[i + 4] = verbs[op.verb](op)
    end
  end
  end_batch(count)
  answers[4] = U.open_count
  return answers
end

redis.register_function(LIBRARY .. '_batch', batch)
