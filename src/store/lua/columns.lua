-- The verbs that come with every job: PUT, RESERVE, COMMIT, FINISH. They come as columns (see
-- redis_columns.c), because taking each op apart would cost more than the work. Nearly always they
-- are the three steps of a job that goes well, a new job that its first candidate takes, its ACK, its
-- DONE: those are done here. Each step makes sure that nothing is out of the ordinary, else it answers
-- nil, having changed nothing, and the verb itself decides. What is right is written there; here is
-- only what is fast: a call of a function costs as much as ten lines of Lua, a new text or table as
-- much as five, a look into a table as much as two, so there are few of them; and what a batch learns
-- of a job or a node is kept for the next (see `kept` in unit.lua).
columns.steps = {} -- by code: the fast way; answers the counters of the node and the record of the job

function columns.make() -- a function, as the one around it has no room for more locals
-- A code is one of these and the sum of what holds.
local PUT, RESERVE, COMMIT, FINISH = CODE.PUT, CODE.RESERVE, CODE.COMMIT, CODE.FINISH
local FAST, OTHER_BUCKET, MORE_TEXT, FRESH = CODE.FAST, CODE.OTHER_BUCKET, CODE.MORE_TEXT, CODE.FRESH
-- The columns. Codes are of all ops; `firsts` is what a fast step compares: slots that stay free, the
-- attempt; `kinds` is which of the terms a row has.
local codes, firsts, kinds, ids, nodes, terms
local rests, rest_of_row, rest_at -- one text for all rows: what only the verbs read; and where we are
local APART = stamps.APART
local verb_of, is_fast, is_other, has_more, is_fresh = {}, {}, {}, {}, {} -- by code
local TERM = PACKED.PUT_TERM -- how long it is reserved, callback, time-out, owner, attempts; then the type

do
local ID = 'c' .. JOB_ID
local formats = {[ID] = {}, s = {}, Bc0 = {}} -- each so many times

-- One call that answers a list costs a fraction of a call for each of it. The last that struct.unpack
-- answers is where it stopped.
local function list(item, count, packed, from)
  local format = formats[item][count] or string.rep(item, count)
  local got = {unpack_struct(format, packed, from)}
  formats[item][count] = format
  from, got[count + 1] = got[count + 1], nil
  return got, from
end

function columns.read(packed, more, count, rows, term_count)
  local from = count + 1
  codes = {byte(packed, 1, count)}
  firsts = {byte(packed, from, from + rows - 1)}
  from = from + rows
  kinds = {byte(packed, from, from + rows - 1)}
  ids, from = list(ID, rows, packed, from + rows)
  nodes, from = list('s', rows, packed, from)
  terms = list('Bc0', term_count, packed, from)
  rests, rest_of_row, rest_at = more, 1, 1
  return codes, ids, nodes, kinds, firsts
end

end

do -- Rows as the verbs want them. What a fast one has in common with others is in its terms; texts
   -- follow as arguments of their own.
local NO_JOB = 'j0000000000000'

local function rest_of(k)
  while rest_of_row < k do
    rest_at = rest_at + 2 + unpack_struct('<I2', rests, rest_at)
    rest_of_row = rest_of_row + 1
  end
  return (unpack_struct('<I2c0', rests, rest_at))
end

local function op_of(k, letter)
  return {verb = letter, job = ids[k] ~= NO_JOB and ids[k] or ''}
end

local function put_fast(op, k)
  local rest, from = rest_of(k), nil
  op.ttl, op.callback, op.timeout, op.owner, op.max, from = unpack_struct(TERM, terms[kinds[k]])
  op.type = sub(terms[kinds[k]], from)
  op.attempt, op.hold, op.has_spec, op.has_idem = 1, 0, 1, 0
  op.not_after, from = unpack_struct(PACKED.BOUND, rest)
  return rest, from
end

local function put_long(op, k)
  local rest, from, last = rest_of(k), nil, nil
  last, op.has_spec, op.has_idem, op.attempt, op.hold, op.ttl, op.callback, op.timeout, op.owner, op.max,
    op.not_after, op.type, from = unpack_struct(PACKED.PUT_REST .. 'Bc0', rest)
  op.last = last == 1
  return rest, from
end

local function put_op(k, letter, code)
  local op = op_of(k, letter)
  local rest, from = (is_fast[code] and put_fast or put_long)(op, k)
  local spare, count
  spare, count, from = unpack_struct(PACKED.COUNT_REST, rest, from)
  op.callback = op.callback == 1
  op.nodes, op.spares = {count > 0 and nodes[k] or nil}, {spare}
  for i = 2, count do op.spares[i], op.nodes[i], from = unpack_struct(PACKED.NODE_REST .. 'Bc0', rest, from) end
  if letter == 'P' then
    op.lane, from = unpack_struct('c8', rest, from)
    op.priority, op.wait, op.lane_max = unpack_struct(PACKED.WAIT_REST, rest, from)
  end
  if op.has_spec == 1 then op.spec = text() end
  if has_more[code] then op.session, op.pool, op.lang_pair = text(), text(), text() end
  if op.has_idem == 1 then op.idem, op.fingerprint = text(), text() end
  return op
end

local function commit_op(k, letter, code)
  local op, has_node = op_of(k, letter), 1
  if is_fast[code] then
    op.attempt, op.not_after = firsts[k], unpack_struct(PACKED.BOUND, rest_of(k))
    op.ttl, op.f2f_ttl, op.stop_grace = unpack_struct(PACKED.COMMIT_TERM, terms[kinds[k]])
  else
    has_node, op.attempt, op.not_after, op.ttl, op.f2f_ttl, op.stop_grace =
      unpack_struct(PACKED.COMMIT_REST, rest_of(k))
  end
  op.node = has_node == 1 and nodes[k] or nil
  op.send = has_more[code] and unpack_struct(PACKED.SEND, text()) or 0
  return op
end

local function finish_op(k, letter, code)
  local op, has_node, has_reason = op_of(k, letter), 1, 0
  if is_fast[code] then
    op.attempt, op.outcome, op.owner, op.hold, op.speaks = firsts[k], OUTCOME.DONE, 0, 0, true
    op.not_after = unpack_struct(PACKED.BOUND, rest_of(k))
  else
    local left, want_record, speaks
    has_node, op.attempt, op.not_after, op.outcome, has_reason, left, want_record, speaks, op.owner,
      op.hold = unpack_struct(PACKED.FINISH_REST, rest_of(k))
    op.left, op.want_record, op.speaks = left == 1, want_record == 1, speaks == 1
  end
  op.node = has_node == 1 and nodes[k] or nil
  op.result = has_more[code] and text() or nil
  op.reason = has_reason == 1 and text() or ''
  op.reason_json = has_reason == 1 and text() or 'null'
  return op
end

local readers = {
  [PUT] = {letter = 'P', read = put_op}, [RESERVE] = {letter = 'R', read = put_op},
  [COMMIT] = {letter = 'C', read = commit_op}, [FINISH] = {letter = 'F', read = finish_op},
}

function columns.op(k, code)
  columns.ask()
  if is_other[code] then columns.turn(ids[k]) end
  local reader = readers[verb_of[code]]
  return reader.read(k, reader.letter, code)
end

end

-- The steps.

-- A node has its counters as one number. What runs must stay below the first: no node may have more
-- than a million.
local ONE_RESERVED, ONE_RUNNING = 16777216, 1
local now, clock -- terms are by the clock
local jobs, known -- of `kept`: jobs that hold a slot, and nodes
local touched -- has a verb of this batch records of its own?
local raw -- that of U, if there is any
local is_asked -- have the records of all rows been asked for?
local bucket, row, size -- of the row: what is written to it
local active, made, created -- those of U
local changed, changes = {}, 0 -- nodes this batch changed
local job, node_of -- the layouts that are written. The steps put the parts of a job together in their order:
  -- first, times, ran, made; about, and its texts
local TIMES, RAN, MADE, ABOUT, TEXTS, DUE, TIMEOUT, SENT, EPOCH -- where these begin
local never_ran, ended_now -- a `ran` and `times`

-- A phase is what jobs have in common that took the same step in the same batch: a record is `head`,
-- whose last parts are `ran`, from when to when it may run, and `made`; and `back`, which begins with
-- `about`. `limit` is how long it may run, `due` when its lease ends by its own term (`reach`: no stamp of its node that
-- ends by then changes that), `stage` what may come next.
local stages = {} -- by the first bytes of a record: what may come next, and what they become then
local begun -- by kind: the phase of jobs that begin
local acked -- by kind, and the phase they were in: that of jobs whose ACK came
local ended -- by the phase they were in: what the records of jobs that are done begin with

function columns.forget()
  begun = {}
end

-- After a verb, or at the beginning.
function columns.resume()
  touched, raw, active, made, created = U.touched, rawget(U, 'raw'), U.active, U.made, nil
  if bucket then size = bucket.size end
end

function columns.open()
  now, clock, jobs, known, is_asked, bucket, changes = U.now, U.clock, kept.jobs, kept.nodes, false, nil, 0
  begun, acked, ended, ended_now = {}, {}, {}, job.times(0, now, now)
  columns.resume()
end

-- Before a verb, or the end: U has all that the steps did.
function columns.pause()
  if bucket then bucket.size = size end
  U.active, U.made = active, made
end

-- What comes now is in another bucket than what was before.
function columns.turn(id)
  if bucket then bucket.size = size end
  bucket = bucket_get(bucket_of(id))
  row, size = bucket.row, bucket.size
end

-- The records of all rows that are not known: at once, when a first one is needed.
function columns.ask()
  if is_asked then return end
  is_asked = true
  columns.pause()
  local asked, raw_nodes = {}, U.raw_nodes
  for k = 1, #ids do
    local id, node = ids[k], nodes[k]
    if job_raw(id) == nil and U.jobs[id] == nil then bucket_ask(bucket_get(bucket_of(id)), id) end
    if not known[node] and raw_nodes[node] == nil then asked[#asked + 1] = node end
  end
  jobs_fetch()
  nodes_prefetch(asked)
  columns.resume()
end

-- The node was read again since the job was: is its epoch the same?
local function join(j, n)
  if j.node.id ~= n.id or j.node.epoch ~= n.epoch then return false end
  j.node = n
  return true
end

-- What is kept of a job: its phase, its node, and the rest of its record; nil when it is not one that goes
-- well, or a verb of this batch has its own of it.
local function keep_job(id, n)
  columns.ask()
  local packed = raw[id]
  if not packed or (touched and U.jobs[id] ~= nil) then return nil end
  local first = sub(packed, 1, TIMES - 1)
  -- One that stands on the wheel and is of the node's epoch holds a slot there.
  if not stages[first] or unpack_struct('<I4', packed, EPOCH) ~= n.epoch or
    sub(packed, TEXTS, TEXTS + #n.id) ~= n.id .. '\0' then
    return nil
  end
  local j = {
    back = sub(packed, ABOUT), node = n,
    phase = {
      head = sub(packed, 1, ABOUT - 1), made = sub(packed, MADE, ABOUT - 1),
      ran = sub(packed, RAN, MADE - 1), limit = unpack_struct('<i6', packed, TIMEOUT),
      due = unpack_struct('<i6', packed, DUE), stage = stages[first],
      is_f2f = sub(packed, TEXTS + #n.id + 1, TEXTS + #n.id + 4) == 'f2f\0',
    },
  }
  jobs[id], raw[id] = j, nil
  return j
end

-- What answers tell of a node that would have these counters. Nodes with the same health and limits
-- share the texts.
local function counts_text(n, counts)
  local text = n.texts[counts]
  if not text then
    text = node_of.counts(n.health, floor(counts / ONE_RESERVED), counts % ONE_RESERVED) .. n.limits
    n.texts[counts] = text
  end
  return text
end

local function texts_of(health, limits)
  local texts = kept.counts[health .. limits] or {}
  kept.counts[health .. limits] = texts
  return texts
end

-- `room` is how many it takes; none that is not ready takes any. `taken` and `ended`: jobs that got a lease of it
-- in this batch, or that run since, each with what `h:NODE` says of it, and those whose lease ended.
local function keep_node(node)
  columns.ask()
  local packed = U.raw_nodes[node]
  if not packed or byte(packed) ~= layout.format or (touched and U.nodes[node] ~= nil) then return nil end
  local at, from = node_of.at, node_of.from
  local health, reserved = byte(packed, at.health), unpack_struct('<i4', packed, at.reserved)
  local running, max = unpack_struct('<i4', packed, at.running), unpack_struct('<i4', packed, at.max)
  if health == HEALTH.NONE or reserved < 0 or running < 0 or reserved >= ONE_RESERVED or
    running >= ONE_RESERVED then
    return nil
  end
  local limits = sub(packed, from.limits, from.facts - 1)
  local n = {
    id = node, room = health == HEALTH.READY and max > 0 and max - reserved - running or -FOREVER,
    counts = ONE_RESERVED * reserved + running, health = health, limits = limits,
    texts = texts_of(health, limits), epoch = unpack_struct('<I4', packed, at.epoch), backs = {},
    is_changed = false, facts = sub(packed, from.facts), key = KEY .. 'h:' .. node, taken = {}, takes = 0,
    ended = {}, ends = 0, epoch_text = sub(packed, at.epoch, at.epoch + 3), task_until = unpack_struct('<i6', packed, at.task_until),
    f2f_until = unpack_struct('<i6', packed, at.f2f_until),
  }
  known[node] = n
  return n
end

function columns.node_text(n)
  return counts_text(n, n.counts) .. n.facts
end

local function change(n)
  n.is_changed = true
  changes = changes + 1
  changed[changes] = n
end

-- Which jobs have a lease of them since, and which none any more. What the steps took came before anything
-- that a verb did to it.
function columns.write_holds()
  for i = 1, changes do
    local n = changed[i]
    if n.takes == 2 then
      call('HSET', n.key, n.taken[1], n.taken[2])
    elseif n.takes > 2 then
      call('HSET', n.key, unpack_list(n.taken, 1, n.takes))
    end
    if n.ends == 1 then
      call('HDEL', n.key, n.ended[1])
    elseif n.ends > 1 then
      call('HDEL', n.key, unpack_list(n.ended, 1, n.ends))
    end
    n.takes, n.ends = 0, 0
  end
end

-- Their names and texts, one after the other. Answers how many.
function columns.write_nodes(set)
  for i = 1, changes do
    local n = changed[i]
    n.is_changed = false
    set[2 * i - 1], set[2 * i] = n.id, columns.node_text(n)
  end
  return 2 * changes
end

local plain = {} -- the steps, by verb

do
local function begin_phase(kind)
  local ttl, callback, timeout, owner, max, from = unpack_struct(TERM, terms[kind])
  local due = later(clock, ttl)
  if tick_of(due) <= U.wheel_at or due > clock + WHEEL_FAR_MS then return nil end
  local first = job.first(DISPATCHED, RESERVED_LEASE, 1, AT_WHEEL, 0, callback, timeout > 0 and 1 or 0)
  local made = job.made(due, now, now)
  local phase = {
    head = first .. job.times(due, now, 0) .. never_ran .. made, made = made, ran = never_ran,
    limit = timeout, due = due, stage = stages[first], list = wheel_list(due), term = terms[kind],
    owner = owner, max = max, type = '\0' .. sub(terms[kind], from) .. '\0\0',
    is_f2f = sub(terms[kind], from) == 'f2f',
  }
  begun[kind] = phase
  return phase
end

-- The same for all jobs with this term on this node.
local function back_of(n, phase)
  local back = job.about(n.epoch, phase.limit, phase.owner, phase.max) .. n.id .. phase.type
  n.backs[phase.term] = back
  return back
end

local function is_new(id)
  columns.ask()
  return raw[id] == false
end

plain[RESERVE] = function(id, node, kind, spare, code)
  local n, phase = known[node] or keep_node(node), begun[kind] or begin_phase(kind)
  if not n or not phase or n.room <= spare or jobs[id] or (touched and U.jobs[id] ~= nil) or
    (not is_fresh[code] and not is_new(id)) then
    return nil
  end
  if raw then raw[id] = nil end -- from now on it is among `jobs`, or in Redis
  local back = n.backs[phase.term] or back_of(n, phase)
  local record, counts = phase.head .. back, n.counts + ONE_RESERVED
  if not n.is_changed then change(n) end
  local taken, takes = n.taken, n.takes + 2
  taken[takes - 1] = id
  taken[takes] = APART
  n.takes = takes
  n.counts = counts
  n.room = n.room - 1
  jobs[id] = {back = back, node = n, phase = phase}
  local list = phase.list
  local listed = list.count + 1
  list[listed] = id
  list.count = listed
  made = made + 1
  created = created or U.created
  created[made] = id
  active = active + 1
  local to, last = row, size + 4
  to[last - 3] = id
  to[last - 2] = record
  to[last - 1] = id .. ':s'
  to[last] = text()
  size = last
  if has_more[code] then note_session(text(), text(), text()) end
  return n.texts[counts] or counts_text(n, counts), record
end

end

do
-- What an ACK makes of jobs in this phase: false when it is not the plain one.
local function acked_phase(kind, phase)
  local stage, to = phase.stage, false
  local ttl, f2f_ttl, grace = unpack_struct(PACKED.COMMIT_TERM, terms[kind])
  local due, run_until = later(clock, phase.is_f2f and f2f_ttl or ttl), 0
  if phase.limit > 0 then
    run_until = later(later(clock, phase.limit), grace)
    if due > run_until then due = run_until end
  end
  if stage.name == COMMIT and phase.due > clock and due >= phase.due and
    due >= (phase.is_f2f and U.grace_f2f or U.grace_until) then
    local ran = job.ran(now, run_until)
    to = {
      head = stage.to .. job.times(due, now, 0) .. ran .. phase.made, made = phase.made, ran = ran,
      limit = phase.limit, due = due, stage = stage.next, reach = due == run_until and FOREVER or due,
      mark = stamps.mark(stage.attempt, run_until),
    }
  end
  acked[kind] = acked[kind] or {}
  acked[kind][phase] = to
  return to
end

plain[COMMIT] = function(id, node, kind, attempt, code)
  local n = known[node] or keep_node(node)
  local j = n and (jobs[id] or keep_job(id, n))
  if not j or (j.node ~= n and not join(j, n)) then return nil end
  local by_phase, phase, counts = acked[kind], j.phase, n.counts - ONE_RESERVED + ONE_RUNNING
  local to = by_phase and by_phase[phase]
  if to == nil then to = acked_phase(kind, phase) end
  if not to or phase.stage.attempt ~= attempt or counts < 0 or
    to.reach < (phase.is_f2f and n.f2f_until or n.task_until) then
    return nil
  end
  if has_more[code] then -- which send it is about: the moment it was dispatched
    if A[at + 1] ~= sub(phase.head, SENT, SENT + 5) then return nil end
    at = at + 1
  end
  local record, last = to.head .. j.back, size + 2
  local taken, takes = n.taken, n.takes + 2
  taken[takes - 1] = id
  taken[takes] = to.mark .. n.epoch_text -- as stamps.value has it: no stamp of its node reaches farther
  n.takes = takes
  n.counts = counts
  j.phase = to
  row[last - 1] = id
  row[last] = record
  size = last
  if not n.is_changed then change(n) end
  return n.texts[counts] or counts_text(n, counts), record
end

end

do
-- What the records of jobs in this phase begin with after a DONE: false when that is not the plain end.
local function ended_head(phase)
  local stage, head = phase.stage, false
  if stage.name == FINISH and phase.due > clock then
    head = stage.to .. ended_now .. phase.ran .. phase.made
  end
  ended[phase] = head
  return head
end

plain[FINISH] = function(id, node, _, attempt, code)
  local n = known[node] or keep_node(node)
  local j = n and (jobs[id] or keep_job(id, n))
  if not j or (j.node ~= n and not join(j, n)) then return nil end
  local phase, counts = j.phase, n.counts
  local head = ended[phase]
  if head == nil then head = ended_head(phase) end
  if not head or phase.stage.attempt ~= attempt or counts % ONE_RESERVED < ONE_RUNNING then return nil end
  local last = size + 2
  local record = has_more[code] and head .. j.back .. text() or head .. j.back
  counts = counts - ONE_RUNNING
  if not n.is_changed then change(n) end
  local ends = n.ends + 1
  n.ended[ends] = id
  n.ends = ends
  n.counts = counts
  n.room = n.room + 1
  jobs[id] = nil
  active = active - 1
  row[last - 1] = id
  row[last] = record
  size = last
  return n.texts[counts] or counts_text(n, counts), record
end

end

do
local function turned(step)
  return step and function(id, node, kind, first, code)
    columns.turn(id)
    return step(id, node, kind, first, code)
  end
end

local function steps_begin()
  for code = 1, 2 * FRESH - 1 do
    verb_of[code] = code % FAST
    is_fast[code] = floor(code / FAST) % 2 == 1
    is_other[code] = floor(code / OTHER_BUCKET) % 2 == 1
    has_more[code] = floor(code / MORE_TEXT) % 2 == 1
    is_fresh[code] = floor(code / FRESH) % 2 == 1
    local step = is_fast[code] and plain[verb_of[code]]
    columns.steps[code] = is_other[code] and turned(step) or step or nil
  end
end

local function stages_begin()
  stages = {}
  for attempt = 1, ATTEMPTS_MAX do
    for timed = 0, 1 do
      for callback = CALLBACK.NONE, CALLBACK.WANTED do
        local sent = job.first(DISPATCHED, RESERVED_LEASE, attempt, AT_WHEEL, 0, callback, timed)
        local acked = job.first(ACKED, RUNNING_LEASE, attempt, AT_WHEEL, 0, callback, timed)
        local done = job.first(DONE, NONE, attempt, AT_NOWHERE, TOLD_DONE, callback, timed)
        -- Who wants to be called back has an end that is not plain.
        local name = callback == CALLBACK.NONE and FINISH or nil
        stages[acked] = {name = name, attempt = attempt, to = done}
        stages[sent] = {name = COMMIT, attempt = attempt, to = acked, next = stages[acked]}
      end
    end
  end
end

-- From now on this is the layout that is written.
function columns.use(new)
  job, node_of = new.job, new.node
  TIMES, RAN, MADE, ABOUT = job.from.times, job.from.ran, job.from.made, job.from.about
  TEXTS, DUE, TIMEOUT, SENT = job.from.texts, job.at.due, job.at.timeout, job.at.dispatched
  EPOCH = job.at.epoch
  never_ran = job.ran(0, 0)
  steps_begin()
  stages_begin()
end

end

end

columns.make()
