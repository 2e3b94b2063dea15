-- One call, many verbs. KEYS: the nodes, and a key that never exists: while the slot moves to another
-- master, Redis then answers TRYAGAIN instead of showing a half of it. ARGV: the head of the batch,
-- then the ops one after the other, each read by its row of `readers`.

do
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
do
local NO_JOB = 'j0000000000000'

local function job_named(id)
  return id == NO_JOB and '' or id
end

-- The verbs that come with every job are one text with their numbers packed, see redis_wire.c: an
-- argument for each would cost more than the work. fast.lua knows their places, too. Texts of any
-- length follow as arguments of their own.
local PUT, PUT_REST = '<c14Bi8i4i8i6I4BB', '<BBBi4i8i4B'

local function read_put(packed)
  local job, _, not_after, spare, ttl, timeout, owner, _, callback =
    unpack_struct(PUT, packed, 2)
  local len = byte(packed, 51)
  local op = {
    job = job_named(job), not_after = not_after, ttl = ttl, timeout = timeout, owner = owner,
    callback = callback == 1, nodes = {sub(packed, 52, 51 + len)}, spares = {spare},
  }
  local from = 52 + len
  op.type = sub(packed, from + 2, from + byte(packed, from) - 2)
  local has_spec, has_idem, has_session, attempt, hold, max, count, to =
    unpack_struct(PUT_REST, packed, from + byte(packed, from) + 1)
  op.attempt, op.hold, op.max = attempt, hold, max
  for i = 2, count do
    len = byte(packed, to + 4)
    op.spares[i], op.nodes[i] = unpack_struct('<i4', packed, to), sub(packed, to + 5, to + 4 + len)
    to = to + 5 + len
  end
  if count == 0 then op.nodes = {} end
  if has_spec == 1 then op.spec = text() end
  if has_session == 1 then op.session, op.pool, op.lang_pair = text(), text(), text() end
  if has_idem == 1 then op.idem, op.fingerprint = text(), text() end
  return op
end

readers.P = read_put
readers.R = read_put

local COMMIT, FINISH = '<c14Bi8i4i8i8B', '<c14Bi8i4BBBBBBI4i8B'

function readers.C(packed)
  local job, _, not_after, attempt, running_ttl, stop_grace, has_node =
    unpack_struct(COMMIT, packed, 2)
  return {
    job = job_named(job), not_after = not_after, attempt = attempt, running_ttl = running_ttl,
    stop_grace = stop_grace, node = has_node == 1 and sub(packed, 46) or nil,
  }
end

function readers.F(packed)
  local job, _, not_after, attempt, outcome, has_result, has_reason, left, want_record, blames,
    owner, hold, has_node = unpack_struct(FINISH, packed, 2)
  return {
    job = job_named(job), not_after = not_after, attempt = attempt, owner = owner, hold = hold,
    left = left == 1, want_record = want_record == 1, blames = blames == 1, outcome = outcome,
    node = has_node == 1 and sub(packed, 48) or nil, result = has_result == 1 and text() or nil,
    reason = has_reason == 1 and text() or '', reason_json = has_reason == 1 and text() or 'null',
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

end -- of the readers

local function server_now()
  local time = call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- What every call reads and writes is one field: now, order, lapse_seq, version, gate_count,
-- open_count, wheel_at, ripe, total, active, bucket_count, kept, recover_until, generation, newest
-- bucket.
-- redis_nodes.c looks at the order.
local STATE = '<i8i8i8i8i8i8i8i8i8i8i8i8i8ss'

local function begin_batch(now, gen, known)
  U = {
    now = now, ending = nil, jobs = {}, raw = {}, dirty = {}, rows = {}, nodes = {},
    raw_nodes = {}, node_row = {}, dirty_nodes = {}, created = {}, due = {}, lapsed = {},
    wheel = {}, terms = {}, times = {}, gates = {}, dirty_gates = {}, idems = {}, dirty_idems = {},
    sessions = {}, dirty_sessions = {}, callbacks = {}, told = {},
    order = 0, lapse_seq = 0, version = 0, gate_count = 0, open_count = 0, wheel_at = 0,
    ripe = FOREVER, total = 0, active = 0, bucket_count = 0, kept = 0, recover_until = 0, gen = gen,
    bucket = '', lost = 0,
  }
  local packed = call('HGET', KEY .. 'meta', 'state')
  if packed then
    U.last, U.order, U.lapse_seq, U.version, U.gate_count, U.open_count, U.wheel_at, U.ripe,
      U.total, U.active, U.bucket_count, U.kept, U.recover_until, U.gen, U.bucket =
      unpack_struct(STATE, packed)
  elseif known ~= '' then
    recover_begin() -- whoever calls knew another generation: this store was emptied
  end
  U.ending = moment(now) .. moment(now) .. ZERO -- updated, ended, due
end

-- Reads an op that is not as fast.lua wants it.
local function read_op(packed)
  local verb = sub(packed, 1, 1)
  local op = readers[verb](packed)
  op.verb = verb
  op.not_after = op.not_after or number()
  return op
end

local function note_records(op, jobs, nodes)
  if op.job then jobs[#jobs + 1] = op.job end
  if op.runs then for k = 1, #op.runs do jobs[#jobs + 1] = op.runs[k] end end
  if op.ids then for k = 1, #op.ids do jobs[#jobs + 1] = op.ids[k] end end
  if op.node then nodes[#nodes + 1] = op.node end
  if op.nodes and op.nodes[1] then nodes[#nodes + 1] = op.nodes[1] end
end

-- Where the node stands in an op that may be fast.
local function fast_node(packed, first)
  if first == 82 then return sub(packed, 52, 51 + byte(packed, 51)) end -- R
  return sub(packed, first == 67 and 46 or 48) -- C, F
end

-- An op is a table, or the place of its text for those that may be fast (their mark is not 0).
local function read_ops(count)
  local ops, jobs, nodes, sessions = {}, {}, {}, {}
  for i = 1, count do
    local packed = text()
    local mark = byte(packed, 16)
    if #packed > 16 and mark ~= 0 then
      local first = byte(packed, 1)
      ops[i] = at
      jobs[#jobs + 1] = sub(packed, 2, 15)
      nodes[#nodes + 1] = fast_node(packed, first)
      if first == 82 then
        at = at + 1
        if mark == 2 then
          sessions[#sessions + 1] = A[at + 1]
          at = at + 3
        end
      elseif first == 70 and byte(packed, 30) == 1 then
        at = at + 1
      end
    else
      local op = read_op(packed)
      ops[i] = op
      note_records(op, jobs, nodes)
    end
  end
  jobs_prefetch(jobs)
  nodes_prefetch(nodes)
  if #sessions > 0 then sessions_prefetch(sessions) end
  return ops
end

local function run_op(op)
  if op.not_after > 0 and U.now > op.not_after then return {ERR.TOO_LATE, false, false} end
  return verbs[op.verb](op)
end

-- What fast.lua did is told by two texts, what a verb did by one or a list.
local function run_ops(ops, answers, count)
  local to = #answers
  for i = 1, count do
    local op = ops[i]
    local node, record
    if type(op) == 'number' then
      local packed = A[op]
      node, record = fast[sub(packed, 1, 1)](packed, op)
      at = op
      op = not node and read_op(packed)
    end
    if node then
      answers[to + 1], answers[to + 2] = node, record
      to = to + 2
    else
      to = to + 1
      answers[to] = run_op(op)
    end
  end
end

local function end_batch(count)
  write_due()
  write_lapsed()
  write_jobs()
  write_wheel()
  write_nodes()
  if next(U.dirty_gates) then write_gates() end
  if next(U.dirty_idems) then write_idems() end
  if next(U.dirty_sessions) then write_sessions() end
  if next(U.callbacks) then write_callbacks() end
  publish_nodes()
  call('HSET', KEY .. 'meta', 'state', pack(STATE, U.now, U.order + count, U.lapse_seq, U.version,
    U.gate_count, U.open_count, U.wheel_at, U.ripe, U.total, U.active, U.bucket_count, U.kept,
    U.recover_until, U.gen, U.bucket))
end

-- ARGV: packed: now (only a library loaded for tests looks at it), the store time after which
-- nothing may change any more, retention, breaker threshold and cooldown, whether the instance came
-- from another master a while ago, the number of ops; then the instance's name, a name for a new
-- generation, and the one it knows ('': none yet). Answers {now, order of the first op - 1,
-- generation, open breakers, leases taken back, answers...}.
local function batch(keys, args)
  begin_library()
  A, at = args, 4
  local now, late, retention, threshold, cooldown, moved, count =
    unpack_struct('<i8i8i8i8i8BI4', args[1])
  if not TEST_CLOCK then now = server_now() end
  if late > 0 and now > late then return {now, 'LATE'} end
  begin_batch(now, args[3], args[4])
  U.instance, U.retention, U.threshold, U.cooldown = args[2], retention, threshold, cooldown
  U.moved = moved == 1
  wheel_turn()
  local ops = read_ops(count)
  if not (count > 0 and type(ops[1]) == 'table' and ops[1].verb == 'I' and not others_live()) then
    pass_time(U.last)
  end
  local answers = {now, U.order, U.gen, 0, 0}
  run_ops(ops, answers, count)
  end_batch(count)
  answers[4], answers[5] = U.open_count, U.lost
  U, A = nil, nil -- what stays is looked at by every round of Lua's collector
  return answers
end

redis.register_function(LIBRARY .. '_batch', batch)

end
