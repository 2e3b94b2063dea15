-- One call, many verbs. KEYS: the nodes, and a key that never exists: while the slot is being migrated, it makes Redis
-- answer TRYAGAIN instead of running on half of the data. ARGV: the head of the batch, then the texts of the rows of
-- its columns, then the other ops, each decoded by its entry in `readers`.

do
local function number()
  at = at + 1
  return tonumber(A[at])
end

local HEAD_ARGS = 6

local function texts(count)
  local list = {}
  for i = 1, count do list[i] = text() end
  return list
end

local function has(flags, letter)
  return find(flags, letter, 1, true) ~= nil
end

local readers = {}
function readers.N()
  local op = {node = text(), ttl = number(), f2f_ttl = number(), runs = {}, attempts = {}, looked = 0}
  local flags = text()
  op.all, op.left, op.last = has(flags, 'a'), has(flags, 'l'), has(flags, 'e')
  for i = 1, number() do
    op.runs[i] = text()
    op.attempts[i] = number()
  end
  return op
end

function readers.W()
  return {job = text(), attempt = number(), lane = text(), priority = number(), wait = number(),
    lane_max = number(), all_max = number(), bytes = number(), jobs_max = number(), bytes_max = number(),
    account = text(), bounds_keys = text() == '1'}
end

function readers.D()
  return {max = number()}
end

function readers.M()
  local op = {node = text()}
  local flags = text()
  op.own, op.health, op.max, op.admin, op.if_epoch = number(), number(), number(), number(), number()
  if has(flags, 'f') then op.facts = text() end
  if has(flags, 'r') then op.resources = text() end
  op.set_admin, op.new_epoch, op.keeps_runs = has(flags, 'a'), has(flags, 'e'), has(flags, 'k')
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

function readers.A()
  return {pattern = text(), limit = text(), drop = text() == '1'}
end

function readers.H()
  return {pattern = text(), hold = number(), reason = text()}
end

function readers.Q()
  return {prefix = text(), after = text(), max = number()}
end

function readers.I()
  return {version = text(), writes = number(), number = 0, ttl = number(), f2f_ttl = number()}
end

function readers.Y()
  return {version = text(), writes = number(), number = number()}
end

function readers.L()
  return {owner = number(), from = number()}
end

function readers.T()
  return {whole = text() == '1', jobs_max = number()}
end

function readers.S()
  return {to = text(), text = text()}
end

function readers.U()
  return {node = text(), kind = number(), incarnation = text()}
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
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- Tables are created on first use.
local function unit_new(now, gen)
  local unit = setmetatable({
    now = now, last = false, touched = false, order = 0, lapse_seq = 0, version = 0, gate_count = 0,
    gates_moved = false, open_count = 0, clock = now, offset = 0, grace_from = 0, grace_min = 0, grace_until = 0,
    grace_f2f = 0, wheel_at = 0, wheel_done = 0, free_at = 0, ripe = FOREVER, total = 0, active = 0,
    unlooked = 0, full = 0, recover_until = 0, gen = gen, span = '', made = 0, owes = false, noted = false,
    tidied = false, lost = 0, moved = false, limits_version = 0, limits_at = '', offset_since = 0, pauses = 0, lease_round = 0, lane_round = 0,
  }, LAZY)
  layout.state.begin(unit)
  return unit
end

-- "WRITTEN OLDEST NEWEST SINCE", see store/record.h. Can this library work with these record formats?
local function formats_read(text)
  formats.text = nil
  if not text then return false end
  local written, oldest, newest, since = string.match(text, '^(%d+) (%d+) (%d+) (%-?%d+)')
  formats.written, formats.oldest = tonumber(written), tonumber(oldest)
  formats.newest, formats.since = tonumber(newest), tonumber(since)
  if not since or formats.oldest < FORMAT_OLDEST or formats.newest > FORMAT_NEWEST or
    formats.written < formats.oldest or formats.written > formats.newest then
    return false
  end
  formats.text = text
  layout_use(formats.written)
  return true
end

-- The very first call: it is not yet known which formats other instances read.
local function formats_begin(now)
  formats.written, formats.oldest, formats.newest = FORMAT_OLDEST, FORMAT_OLDEST, FORMAT_OLDEST
  formats.since, formats.changed = now, true
  layout_use(FORMAT_OLDEST)
end

local function write_formats()
  call('HSET', KEY .. 'meta', 'format', formats.written .. ' ' .. formats.oldest .. ' ' ..
    formats.newest .. ' ' .. formats.since)
  formats.text, formats.changed = nil, false -- and the next batch reads it again
end

-- Forgets everything cached from Redis except the progress of a recount.
local function kept_forget()
  kept.jobs, kept.nodes, kept.counts, kept.unit, kept.gated, kept.owed, kept.owes = {}, {}, {}, nil, nil, {}, 0
  kept.is_table, kept.stocks, kept.dirty_stocks, kept.keys, kept.dirty_keys, kept.new_keys = false, {}, {}, {}, {}, {}
  kept.holding, kept.key_count = {}, 0
  limits.gate_forget()
end

-- If this library cannot work with the value of `meta.format`, returns that value and changes nothing.
local function begin_batch(now, gen, known)
  local got = call('HMGET', KEY .. 'meta', 'state', 'format')
  local packed, text = got[1], got[2]
  local is_other, is_lost = text ~= formats.text, false
  if packed and is_other and not formats_read(text) then return text or '' end
  formats.changed = false
  if not packed then formats_begin(now) end
  if not packed or is_other or packed ~= kept.state then
    kept_forget()
    kept.recount = nil
    columns.drop()
    is_lost = packed
  end
  kept.state = nil -- until this batch is complete
  U = kept.unit or unit_new(now, gen)
  if kept.unit then
    U.last = U.now
    U.now = now
  elseif packed then
    records.state[byte(packed)].read(U, packed)
    U.last, U.now = U.now, now
  elseif known ~= '' then
    recover_begin() -- the caller knows another generation: this store was emptied
  end
  if (U.last and now - U.last > AWAY_MS) or now < formats.since then
    formats.since, formats.changed = now, true -- other instances could not announce themselves
  end
  return nil, is_lost
end

-- Decodes an op that is not a row.
local function read_op()
  local verb = text()
  local op = readers[verb]()
  op.verb = verb
  op.not_after = number()
  return op
end

local function note_records(op, jobs, nodes)
  if op.job then jobs[#jobs + 1] = op.job end
  if op.node then nodes[#nodes + 1] = op.node end
end

local NOTHING = {}

-- Decodes the ops that are not rows, by number, and requests the records they need.
local function read_ops(codes, texts)
  local others, jobs, nodes = {}, {}, {}
  at = HEAD_ARGS + texts
  for i = 1, #codes do
    if codes[i] == 0 then
      others[i] = read_op()
      note_records(others[i], jobs, nodes)
    end
  end
  at = HEAD_ARGS
  jobs_prefetch(jobs)
  nodes_prefetch(nodes)
  return others
end

local function run_op(op)
  U.touched = true
  limits.gate_forget()
  if op.not_after > 0 and U.now > op.not_after then return {ERR.TOO_LATE, false, false} end
  return verbs[op.verb](op)
end

-- Are conditions ordinary? Few breakers with failures, nothing expired, no recovery in progress, and room for more.
local function is_plain()
  return columns.may_be_gated() and U.clock < U.ripe and U.now >= U.recover_until and U.full < FULL
end

local answers = {} -- ends at the first nil. Reused by later batches so that it need not grow again

-- Runs the verb itself. Returns the steps possible after it.
local function run_verb(other, k, code, may_fast)
  local op = other or columns.op(k, code)
  columns.pause()
  local answer = run_op(op)
  columns.resume()
  return answer, may_fast and is_plain() and columns.steps or NOTHING
end

-- A fast step answers with two texts, a verb with one text or a list.
local function run_ops(others, may_fast, codes, ids, nodes, kinds, firsts)
  local told, to, k = answers, ANSWERS, 0
  local steps = may_fast and is_plain() and columns.steps or NOTHING
  columns.open()
  for i = 1, #codes do
    local code, node, record = codes[i], nil, nil
    local step = steps[code]
    if code ~= 0 then k = k + 1 end
    if step then node, record = step(ids[k], nodes[k], kinds[k], firsts[k], code, k) end
    if node then
      told[to + 1] = node
      to = to + 2
      told[to] = record
    else
      to = to + 1
      told[to], steps = run_verb(others[i], k, code, may_fast)
    end
  end
  columns.pause()
  told[to + 1] = nil
end

-- Keeps what the next batch can reuse. A batch without verbs also leaves its unit.
local function keep_batch(state)
  local _, b = next(U.buckets)
  kept.row = b and b.row or kept.row
  kept.state, kept.unit = state, nil
  if U.tidied then kept_forget() end
  if U.touched or U.noted then return end
  U.buckets, U.raw, U.raw_nodes = nil, nil, nil
  kept.unit = U
end

local function end_batch(count)
  if U.touched then
    write_due()
    write_lapsed()
  end
  write_jobs()
  if U.unlooked >= LOOK_JOBS then memory_look() end
  write_wheel()
  if U.tidied or kept.owes >= LIMIT.OWED then owed.settle() else write_holds() end
  write_nodes()
  resources.write()
  if U.touched then
    if next(U.dirty_gates) then write_gates() end
    if next(U.dirty_idems) then write_idems() end
    if next(U.callbacks) then write_callbacks() end
    lanes.write()
    publish_nodes()
    lanes.publish()
  end
  if kept.dirty_keys[1] or rawget(U, 'eased') then limits.write() end
  if U.noted then write_sessions() end
  if formats.changed then write_formats() end
  U.order = U.order + count
  local state = layout.state.pack(U)
  call('HSET', KEY .. 'meta', 'state', state)
  keep_batch(state)
end

-- ARGV: packed: now (used only by a library loaded for tests), the store time after which nothing may change any more,
-- retention, breaker threshold and cooldown, whether the instance came from another master recently, its number (0:
-- this call requests one), the earliest time after which a fast op may not begin (0: none), the number of ops, of rows,
-- of their terms and of their texts; the columns, and the rests of the rows; then the instance's name, a name for a new
-- generation, and the one it knows ('': none yet). Returns {now, order of the first op - 1, generation, open breakers,
-- restored leases, how far now is ahead of the steady clock, answers...}; or, having done nothing: {now, 'LATE'} when
-- too late, {now, 'NUMBER'} when another instance has the number, {now, 'FORMAT', value} when the format is not
-- readable.
local function batch(keys, args)
  if not call then begin_library() end
  A, at = args, HEAD_ARGS
  local now, late, retention, threshold, cooldown, moved, own, early, count, rows, terms, texts =
    unpack_struct('<i8i8i8i8i8BI2i8I4I4I4I4', args[1])
  if not TEST_CLOCK then now = server_now() end
  if late > 0 and now > late then return {now, 'LATE'} end
  local refused, is_lost = begin_batch(now, args[5], args[6])
  if refused then return {now, 'FORMAT', refused} end
  U.instance, U.retention, U.threshold, U.cooldown = args[4], retention, threshold, cooldown
  U.moved = moved == 1
  if own > 0 and args[6] ~= U.gen and not instances.keep_number(own) then return {now, 'NUMBER'} end
  pass_time()
  if is_lost then owed.find() end
  wheel_turn()
  local codes, ids, nodes, kinds, firsts = columns.read(args[2], args[3], count, rows, terms)
  local others = rows < count and read_ops(codes, texts) or NOTHING
  answers[1], answers[2], answers[3] = now, U.order, U.gen
  run_ops(others, early == 0 or now <= early, codes, ids, nodes, kinds, firsts)
  end_batch(count)
  if TEST_CLOCK then note_work() end
  answers[4], answers[5], answers[6] = U.open_count, U.lost, U.offset
  U, A = nil, nil -- Lua's garbage collector traverses whatever is kept
  return answers
end

-- When Redis is at its maxmemory, existing jobs continue and room is made: see memory_look().
redis.register_function({function_name = LIBRARY .. '_batch', callback = batch, flags = {'allow-oom'}})

end
