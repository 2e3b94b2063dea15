-- The verbs every job needs: PUT, RESERVE, ACK, FINISH. They arrive as columns (see redis_columns.c), because
-- decoding each op separately would cost more than the work. Nearly all are the three steps of a successful job: a new
-- job taken by its first candidate, its ACK, its DONE; and many jobs of a batch take the same step. A step asks its
-- verb's rule once for one of several identical jobs and applies the result to all of them. Rows that differ, or are
-- not plain, are left to the verb: the step then returns nil without having changed anything.
--
-- Only fast code belongs here: a function call costs as much as ten lines of Lua, a new string or table as much as
-- five, a table lookup as much as two, so there are few of them; and what a batch learns about a job or a node is kept
-- for the next (see `kept` in unit.lua).
columns.steps = {} -- by code: the fast path; returns the node's counters and the job's record

function columns.make() -- a function, because the enclosing one has no room for more locals
-- A code is one of these plus the flags that apply.
local PUT, RESERVE, ACK, FINISH = CODE.PUT, CODE.RESERVE, CODE.ACK, CODE.FINISH
local FAST, OTHER_BUCKET, MORE_TEXT, FRESH = CODE.FAST, CODE.OTHER_BUCKET, CODE.MORE_TEXT, CODE.FRESH
-- The columns. Codes are of all ops; `firsts` is what a fast step compares: slots to keep free, the attempt; `kinds` is
-- the index of a row's term.
local codes, firsts, kinds, ids, nodes, terms
local rests, rest_of_row, rest_at -- one text for all rows, read only by the verbs; and the position in it
local verb_of, is_fast, is_other, has_more, is_fresh = {}, {}, {}, {}, {} -- by code
local TERM = PACKED.PUT_TERM -- reservation time, callback, time-out, owner, attempts; then the type
local op_read -- builds the op of a row for its verb, with this rest

-- What jobs with this demand take, if the steps can handle it: one slot, amounts and keys. nil: they cannot.
local function takes_of(demand)
  if demand == '' then return false end
  local d = demands.parse(demand)
  if d.slots > 1 or d.gpus > 0 or d.vram > 0 then return nil end
  return d
end

-- The type in a term, and the demand after it.
local function type_and_demand(term, from)
  local zero = find(term, '\0', from, true)
  if not zero then return sub(term, from), '' end
  return sub(term, from, zero - 1), sub(term, zero + 1)
end

do
local ID = 'c' .. JOB_ID
local formats = {[ID] = {}, s = {}, Bc0 = {}} -- repeated n times

-- One call that returns a list costs a fraction of one call per element. The last result of struct.unpack is where it
-- stopped.
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

do -- Builds ops for the verbs. What a fast row shares with others is in its term; texts follow as separate arguments.
local NO_JOB = 'j0000000000000'

local function rest_of(k)
  while rest_of_row < k do
    rest_at = rest_at + 2 + unpack_struct('<I2', rests, rest_at)
    rest_of_row = rest_of_row + 1
  end
  return (unpack_struct('<I2c0', rests, rest_at))
end

local function job_of(k)
  return ids[k] ~= NO_JOB and ids[k] or ''
end

-- Tables are created with all their fields at once, as a growing one is reallocated again and again.
local function put_fast(k, letter, rest)
  local term = terms[kinds[k]]
  local ttl, callback, timeout, owner, max, type_at = unpack_struct(TERM, term)
  local not_after, from = unpack_struct(PACKED.BOUND, rest)
  local type, demand = type_and_demand(term, type_at)
  return {
    verb = letter, job = job_of(k), ttl = ttl, callback = callback == 1, timeout = timeout, owner = owner, max = max,
    type = type, attempt = 1, hold = 0, has_spec = 1, has_idem = 0, not_after = not_after,
    nodes = nil, spares = nil, spec = nil, demand = demand,
  }, from
end

local function put_long(k, letter, rest)
  local last, has_spec, has_idem, has_demand, attempt, hold, ttl, callback, timeout, owner, max, not_after, type, from =
    unpack_struct(PACKED.PUT_REST .. 'Bc0', rest)
  return {
    verb = letter, job = job_of(k), last = last == 1, has_spec = has_spec, has_idem = has_idem, attempt = attempt,
    hold = hold, ttl = ttl, callback = callback == 1, timeout = timeout, owner = owner, max = max,
    not_after = not_after, type = type, nodes = nil, spares = nil, spec = nil, demand = has_demand == 1 and text() or '',
  }, from
end

local function put_op(k, letter, code, rest)
  local op, from = (is_fast[code] and put_fast or put_long)(k, letter, rest)
  local spare, count
  spare, count, from = unpack_struct(PACKED.COUNT_REST, rest, from)
  op.nodes, op.spares = {count > 0 and nodes[k] or nil}, {spare}
  for i = 2, count do op.spares[i], op.nodes[i], from = unpack_struct(PACKED.NODE_REST .. 'Bc0', rest, from) end
  if letter == 'P' then
    op.lane, from = unpack_struct('c8', rest, from)
    local keys
    op.priority, op.wait, op.lane_max, op.all_max, op.bytes, op.jobs_max, op.bytes_max, keys, op.account =
      unpack_struct(PACKED.WAIT_REST .. 'Bc0', rest, from)
    op.bounds_keys = keys == 1
  end
  if op.has_spec == 1 then op.spec = text() end
  if has_more[code] then op.session, op.pool, op.lang_pair = text(), text(), text() end
  if op.has_idem == 1 then op.idem, op.fingerprint = text(), text() end
  return op
end

local function ack_op(k, letter, code, rest)
  local has_node, attempt, not_after, ttl, f2f_ttl, stop_grace = 1, firsts[k], nil, nil, nil, nil
  if is_fast[code] then
    not_after = unpack_struct(PACKED.BOUND, rest)
    ttl, f2f_ttl, stop_grace = unpack_struct(PACKED.ACK_TERM, terms[kinds[k]])
  else
    has_node, attempt, not_after, ttl, f2f_ttl, stop_grace = unpack_struct(PACKED.ACK_REST, rest)
  end
  return {
    verb = letter, job = job_of(k), attempt = attempt, not_after = not_after, ttl = ttl, f2f_ttl = f2f_ttl,
    stop_grace = stop_grace, node = has_node == 1 and nodes[k] or nil,
    send = has_more[code] and unpack_struct(PACKED.SEND, text()) or 0,
  }
end

local function finish_op(k, letter, code, rest)
  local has_node, has_reason, left, want_record, speaks = 1, 0, 0, 0, 1
  local attempt, outcome, owner, hold, has_hold_key, hold_key_ms, not_after = firsts[k], OUTCOME.DONE, 0, 0, 0, 0, nil
  if is_fast[code] then
    not_after = unpack_struct(PACKED.BOUND, rest)
  else
    has_node, attempt, not_after, outcome, has_reason, left, want_record, speaks, owner, hold, has_hold_key, hold_key_ms =
      unpack_struct(PACKED.FINISH_REST, rest)
  end
  return {
    verb = letter, job = job_of(k), attempt = attempt, not_after = not_after, outcome = outcome, owner = owner,
    hold = hold, left = left == 1, want_record = want_record == 1, speaks = speaks == 1,
    node = has_node == 1 and nodes[k] or nil, result = has_more[code] and text() or nil,
    reason = has_reason == 1 and text() or '', reason_json = has_reason == 1 and text() or 'null',
    hold_key = has_hold_key == 1 and text() or nil, hold_key_ms = hold_key_ms,
    hold_reason = has_hold_key == 1 and text() or nil,
  }
end

local readers = {
  [PUT] = {letter = 'P', read = put_op}, [RESERVE] = {letter = 'R', read = put_op},
  [ACK] = {letter = 'C', read = ack_op}, [FINISH] = {letter = 'F', read = finish_op},
}

function op_read(k, code, rest)
  local reader = readers[verb_of[code]]
  return reader.read(k, reader.letter, code, rest)
end

function columns.op(k, code)
  columns.ask()
  if is_other[code] then columns.turn(ids[k]) end
  return op_read(k, code, rest_of(k))
end

end

-- A node's counters are one number. Running ones must stay below the unit of the reserved ones: no node may have more
-- than a million.
local ONE_RESERVED, ONE_RUNNING = 16777216, 1
local jobs, known -- of `kept`: jobs that hold a slot, and nodes
local gated -- nodes that have a breaker; nil: none has
local mark -- of the audit of keys, in records of jobs
local holding -- of `kept`: jobs that may be holders of a key
local full_round = 1 -- see limits.hold_all()
local touched -- does a verb of this batch have its own records?
local raw -- U.raw, if there is any
local is_asked -- have the records of all rows been requested?
local bucket, row, size -- of the row: what is written to it
local active, made, created -- those of U
local changed, changes = {}, 0 -- nodes this batch changed
local stocks, stock_count = {}, 0 -- names and texts of what they have left
local has_holds -- does any of them have `taken` or `ended`?
local job, node_of -- the layouts being written
local LEASE, ABOUT, EPOCH, COUNTED, TEXTS -- where these begin in a job's record
local EPOCH_BYTES = 4
local SAME_REST -- of a row that may be fast: no time limit and only the first candidate

-- Jobs in one phase are identical: their records differ only in the node and its epoch. A record is the phase's `head`
-- plus `back`, which begins with `about`. `takes`: what they take besides their slot, false: nothing. Phases that
-- differ only in that share a `base`, which is one of them. `mark`: in which round their keys' audit counted them.
-- Those that differ only in times share `templates`, by term without its demand, see template_new().
local phases -- by everything the jobs have in common
-- The phase of jobs that do not exist yet.
local NEW_JOB = {head = '', takes = false, base = nil, mark = 0, templates = {}}
NEW_JOB.base = NEW_JOB

-- By base, and by term without its demand: the way that jobs take from there; false: the rule must be asked for each
-- job. A way has the `phase` they are in afterwards, and `phases`, the same by what they take; their `list` of the
-- wheel; `hold`, their value in `h:NODE`, false: removed; `mark`, the same, if the epoch is part of it. It applies to
-- jobs with this `attempt` and `sent`, on nodes whose stamp does not end after `reach`. The counters change as for
-- every step of its verb.
--
-- Ways are valid as long as nothing a rule may read changes, above all the clock: batches of the same millisecond share
-- them if they have the same unit, so that no verb ran in between. Templates last longer: until something changes that
-- does not depend on the job and its node, other than the clock.
local ways, way_count, ways_unit, ways_now = {}, 0, nil, nil
local WAYS_MAX = 64
local lessons, template_count = {}, 0 -- templates of an earlier table of lessons are not valid
local ways_offset, ways_pauses, ways_threshold
local TEMPLATES_MAX = 1024

-- Called after something a rule may depend on has changed.
function columns.forget()
  ways, way_count, ways_unit = {}, 0, nil
  NEW_JOB.templates, lessons, template_count = {}, {}, 0
end

-- The ways of this batch. The lists of the wheel are new in each batch.
local function ways_open()
  if ways_offset ~= U.offset or ways_pauses ~= U.pauses or ways_threshold ~= U.threshold or
    template_count > TEMPLATES_MAX then
    ways_offset, ways_pauses, ways_threshold = U.offset, U.pauses, U.threshold
    columns.forget()
  end
  if ways_unit ~= U or ways_now ~= U.now or way_count > WAYS_MAX then
    ways, way_count, ways_unit, ways_now = {}, 0, U, U.now
    return
  end
  for _, of in pairs(ways) do
    for _, way in pairs(of) do
      if way and way.tick then way.list = wheel.list(way.tick) end
    end
  end
end

-- Called after a verb, or at the beginning.
function columns.resume()
  touched, raw, active, made, created = U.touched, rawget(U, 'raw'), U.active, U.made, nil
  gated, holding = columns.gated(), kept.holding
  if mark ~= limits.mark() then
    mark = limits.mark()
    columns.forget()
  end
  if bucket then size = bucket.size end
end

function columns.open()
  jobs, known, is_asked, bucket, changes, phases, has_holds = kept.jobs, kept.nodes, false, nil, 0, {}, false
  ways_open()
  columns.resume()
end

-- What was kept is lost, perhaps because a batch did not complete.
function columns.drop()
  changes, has_holds = 0, false
  limits.gate_drop()
end

-- Before a verb or the end: copies everything the steps did to U.
function columns.pause()
  if bucket then bucket.size = size end
  U.active, U.made = active, made
  limits.gate_close()
end

-- The next row is in a different bucket than the one before.
function columns.turn(id)
  if bucket then bucket.size = size end
  bucket = bucket_get(bucket_of(id))
  row, size = bucket.row, bucket.size
end

-- Requests all unknown records of the rows at once when the first one is needed.
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

local function phase_new(head, takes, mark, templates)
  local phase = {head = head, takes = takes, base = nil, mark = mark, templates = templates}
  phase.base = phase
  return phase
end

-- The node was read again after the job: is its epoch the same?
local function join(j, n)
  if j.node.id ~= n.id or j.node.epoch ~= n.epoch then return false end
  j.node = n
  return true
end

-- What is kept of a job with a slot on this node: its phase, its node, and the rest of its record; nil when it has no
-- slot, or a verb of this batch has its own copy.
local function keep_job(id, n)
  columns.ask()
  local packed = raw[id]
  if not packed or byte(packed) ~= layout.format or (touched and U.jobs[id] ~= nil) then return nil end
  local node_at = find(packed, '\0', TEXTS, true) + 1 -- it follows the demand
  local behind, d = node_at + #n.id + 1, false
  if node_at > TEXTS + 1 then d = takes_of(sub(packed, TEXTS, node_at - 2)) end
  if d == nil or byte(packed, LEASE) == NONE or sub(packed, EPOCH, EPOCH + EPOCH_BYTES - 1) ~= n.epoch_text or
    sub(packed, node_at, behind - 1) ~= n.id .. '\0' then
    return nil
  end
  local same = sub(packed, 1, EPOCH - 1) .. sub(packed, EPOCH + EPOCH_BYTES, node_at - 1) .. sub(packed, behind)
  local phase = phases[same] or phase_new(sub(packed, 1, ABOUT - 1), d, byte(packed, COUNTED), {})
  local j = {back = sub(packed, ABOUT), node = n, phase = phase}
  phases[same], jobs[id], raw[id] = phase, j, nil
  return j
end

-- The answer text for a node with these counters. Nodes with the same health and limits share the texts.
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

-- The node as it was read, and `counts`, which are its counters from now on. `room` is how many it takes; one that takes
-- none has less than nothing. `taken` and `ended`: jobs that run since this batch, each with what `h:NODE` says of it, and
-- those whose lease ended; without those that are `owed`.
local function keep_node(node)
  columns.ask()
  if gated and gated[node] then return nil end
  local packed = U.raw_nodes[node]
  if not packed or byte(packed) ~= layout.format or (touched and U.nodes[node] ~= nil) then return nil end
  local n, from = node_of.read(node, packed), node_of.from
  if not n.known or n.reserved < 0 or n.running < 0 or n.reserved >= ONE_RESERVED or n.running >= ONE_RESERVED then
    return nil
  end
  n.counts, n.room = ONE_RESERVED * n.reserved + ONE_RUNNING * n.running, lease_room(n)
  n.limits, n.facts = sub(packed, from.limits, from.facts - 1), sub(packed, from.facts)
  n.stock = n.stocked and resources.of(n) or nil
  n.texts, n.epoch_text, n.backs, n.records = texts_of(n.health, n.limits), stamps.epoch(n.epoch), {}, {}
  n.backs_mark = mark
  n.key, n.is_changed, n.taken, n.takes, n.ended, n.ends = KEY .. 'h:' .. node, false, {}, 0, {}, 0
  n.owed = kept.owed[node] or {count = 0}
  kept.owed[node], known[node] = n.owed, n
  return n
end

-- Its record with these counters. The same counters recur often, so the texts are cached.
function columns.node_text(n)
  local counts = n.counts
  local record = n.records[counts]
  if not record then
    record = counts_text(n, counts) .. n.facts
    n.records[counts] = record
  end
  return record
end

-- Which jobs have had a lease with it since, and which no longer do. What the steps did came before anything a verb did
-- to it.
function columns.write_holds()
  if not has_holds then return end
  has_holds = false
  local r = kept.recount
  for i = 1, changes do
    local n = changed[i]
    local takes, ends = n.takes, n.ends
    if r and r.node == n.id then
      for k = 1, takes, 2 do recount.hear(r, n.taken[k], true) end
      for k = 1, ends do recount.hear(r, n.ended[k], false) end
    end
    if takes > 0 then
      local taken = n.taken
      n.takes = 0
      if takes == 2 then call('HSET', n.key, taken[1], taken[2]) else call('HSET', n.key, unpack_list(taken, 1, takes)) end
    end
    if ends > 0 then
      local ended = n.ended
      n.ends = 0
      if ends == 1 then call('HDEL', n.key, ended[1]) else call('HDEL', n.key, unpack_list(ended, 1, ends)) end
    end
  end
end

-- Appends their names and texts, and what they have left, if that changed, to `stocks`. Returns how many.
function columns.write_nodes(set)
  local size, count = 0, 0
  for i = 1, changes do
    local n = changed[i]
    n.is_changed = false
    set[size + 1] = n.id
    size = size + 2
    set[size] = n.records[n.counts] or columns.node_text(n)
    local s = n.stock
    if s and s.is_changed then
      stocks[count + 1] = n.id
      count = count + 2
      stocks[count] = s.left.texts[s.reserved] or resources.text(s)
      s.is_changed = false
    end
  end
  stock_count = count
  return size
end

-- What of it belongs into `r`, after write_nodes().
function columns.stocks()
  return stocks, stock_count
end

local way_find -- asks the rule
do
local batch -- the value of U the rest of the time
-- What a rule may do to a job besides changing its unit, and is repeated here for identical jobs.
local REPEATED = {created = true}

-- A unit for one job and its node: what a rule does in it has no effect elsewhere. Data it only reads is in `around`;
-- the tables of the batch are empty for it.
local unit
local around = {}
local added, adds = {}, 0 -- names the rule wrote besides those it was given, all of which are repeated
local function add(_, name, value)
  adds = adds + 1
  added[adds] = name
  rawset(unit, name, value)
end
local BEYOND = {
  __index = function(_, name)
    local value = rawget(batch, name)
    if value ~= nil and type(value) ~= 'table' then return value end
    value = {}
    add(unit, name, value)
    return value
  end,
}
local APART_FROM_BATCH = {__index = around, __newindex = add}

-- Fields rules need for nearly every job, set directly to avoid function calls.
local function look_around()
  local a, b = setmetatable(around, BEYOND), batch
  a.ripe, a.recover_until, a.full, a.threshold, a.wheel_at = b.ripe, b.recover_until, b.full, b.threshold, b.wheel_at
  a.pauses = b.pauses
  a.grace_from, a.grace_min, a.grace_until, a.grace_f2f = b.grace_from, b.grace_min, b.grace_until, b.grace_f2f
end

local function no_call()
  error('what Redis says of one job holds for no other')
end

-- Runs the rule on this job (false when there is none yet) and its node. A node's stamp can only make a run last
-- longer: the rule sees none, and its result holds for all nodes whose stamp does not reach farther than the way does.
-- Returns the unit and the job; nothing if the op is refused or a duplicate, or if anything happens that cannot be
-- repeated for all identical jobs.
local function ask_rule(op, j, n)
  local calls, apart, task_until, f2f_until = call, n.apart, n.task_until, n.f2f_until
  n.reserved, n.running = floor(n.counts / ONE_RESERVED), n.counts % ONE_RESERVED
  n.task_until, n.f2f_until = 0, 0
  batch = U
  look_around()
  unit = setmetatable({
    now = batch.now, clock = batch.clock, jobs = {[op.job] = j}, nodes = {[n.id] = n}, dirty = {}, dirty_nodes = {},
    holds = {}, wheel = {}, active = batch.active, made = 0, gate_count = 0, -- this node has none
  }, APART_FROM_BATCH)
  U, call, adds = unit, no_call, 0
  local ok, answer = pcall(rules[op.verb], op)
  U, call = batch, calls
  local is_same = n.apart == apart
  n.apart, n.task_until, n.f2f_until = apart, task_until, f2f_until
  if not ok or answer.err ~= ERR.OK or answer.duplicate ~= 0 or not is_same then return nil end
  for i = 1, adds do
    local name = added[i]
    local value = rawget(unit, name)
    if not REPEATED[name] and (type(value) ~= 'table' or next(value)) then return nil end
  end
  return unit, answer.job
end

-- Its value in `h:NODE` has changed. After its head the record is unchanged, with the result at its end. A new job is
-- on the wheel and has no separate text but its spec.
local function is_plain_change(op, before, n, unit, j)
  local holds = unit.holds[n.id]
  if not holds or holds[j.id] == nil then return false end
  if before then return not j.new and sub(job_packed(j), ABOUT) == before .. (op.result or '') end
  if not next(unit.wheel) then return false end
  for tail, text in pairs(j.new) do
    if tail ~= ':s' or text ~= op.spec then return false end
  end
  return true
end

-- By verb: what a step does to the node's counters and the number of active jobs, whether the job has a lease
-- afterwards, and which times of its record are set; it keeps the others.
local MOVES = {
  [RESERVE] = {
    counts = ONE_RESERVED, active = 1, is_held = true, keeps = {},
    sets = {'due', 'updated', 'ended', 'acked', 'run_until', 'filed', 'created', 'dispatched'},
  },
  [ACK] = {
    counts = ONE_RUNNING - ONE_RESERVED, active = 0, is_held = true, sets = {'due', 'updated', 'acked', 'run_until'},
    keeps = {'ended', 'filed', 'created', 'dispatched'},
  },
  [FINISH] = {
    counts = -ONE_RUNNING, active = -1, is_held = false, sets = {'due', 'updated', 'ended'},
    keeps = {'acked', 'run_until', 'filed', 'created', 'dispatched'},
  },
}

local function is_move_of(code, n, unit, hold)
  local move = MOVES[verb_of[code]]
  return ONE_RESERVED * n.reserved + ONE_RUNNING * n.running - n.counts == move.counts and
    unit.active - batch.active == move.active and (hold and true or false) == move.is_held
end

-- A template is what a way does at any time: `job` as the rule left it, of whose times some are as far from the clock
-- in every millisecond (`moves`), and the others the job's own (`keeps`). So the rule need not be asked again in every
-- millisecond. It looks at the times of a job only to see whether it has run out, and whether it is on the wheel early
-- enough: see way_again(). During a grace it looks at more. `templates`: those of the phase the way leads to.
local function template_new(code, op, n, unit, j)
  j.new = nil -- its spec
  return {
    job = j, now = U.now, moves = {}, keeps = MOVES[verb_of[code]].keeps, lessons = lessons, templates = {},
    attempt = op.attempt, is_held = MOVES[verb_of[code]].is_held, is_filed = next(unit.wheel) ~= nil,
    is_f2f = stamps.is_f2f(j), record = job_packed(j), node = n.id,
  }
end

local function time_in(head, name)
  return (unpack_struct('<i6', head, job.at[name]))
end

local function is_graced()
  return U.clock < U.grace_until or U.clock < U.grace_f2f
end

-- Can this template be used at other times? Not if a term is as long as can be, or if the job was filed again.
local function is_lasting(t, base, sets)
  local j, moves = t.job, t.moves
  if is_graced() or (t.is_filed and base ~= NEW_JOB) then return false end
  for i = 1, #t.keeps do
    if j[t.keeps[i]] ~= time_in(base.head, t.keeps[i]) then return false end
  end
  for i = 1, #sets do
    local ms = j[sets[i]]
    if ms >= FOREVER then return false end
    if ms ~= 0 then moves[#moves + 1] = sets[i] end
  end
  return true
end

-- The way of this template at the times its job has.
local function way_of(t)
  local j = t.job
  local hold, tick = t.is_held and stamps.value(j), t.is_filed and tick_of(j.filed) or nil
  return {
    phase = phase_new(job.head(j), false, 0, t.templates), phases = {}, tick = tick, list = tick and wheel.list(tick),
    hold = hold, attempt = t.attempt, sent = pack(PACKED.SEND, j.dispatched),
    mark = hold and hold ~= stamps.APART and sub(hold, 1, -1 - EPOCH_BYTES), reach = stamps.reach(j),
    is_f2f = t.is_f2f, record = t.record, node = t.node,
  }
end

-- The way of this template from this phase at this time; nil: the rule must be asked.
local function way_again(t, base)
  local j, moves, keeps, passed = t.job, t.moves, t.keeps, U.now - t.now
  if is_graced() or (base ~= NEW_JOB and time_in(base.head, 'due') <= U.clock) then return nil end
  for i = 1, #moves do j[moves[i]] = j[moves[i]] + passed end
  for i = 1, #keeps do j[keeps[i]] = time_in(base.head, keeps[i]) end
  t.now = U.now
  if j.place == AT_WHEEL and (tick_of(j.due) <= U.wheel_at or tick_of(j.filed) <= U.wheel_at or j.filed > j.due) then
    return nil
  end
  return way_of(t)
end

-- The way of the job in row k, as the rule of its verb says.
local function way_new(k, code, base, back, n, demand, stem)
  local from = at
  local op = op_read(k, code, SAME_REST)
  at = from -- the texts are not read yet
  op.session = nil -- the session is noted separately
  op.demand = ''
  local before = back and job_read(ids[k], base.head .. back) or false
  if before then before.demand = '' end
  local unit, j = ask_rule(op, before, n)
  if unit and before then j.demand, j.packed = demand, nil end
  if not unit or not is_plain_change(op, back, n, unit, j) or not is_move_of(code, n, unit, unit.holds[n.id][j.id]) then
    return false
  end
  local t = template_new(code, op, n, unit, j)
  if is_lasting(t, base, MOVES[verb_of[code]].sets) then
    base.templates[stem], template_count = t, template_count + 1
  end
  return way_of(t)
end

-- The way of the job in row k, which is in a phase with this base on this node, takes this and has this term; false if
-- it has none. The steps themselves move what it takes besides its slot: the rule is asked for a job that takes
-- nothing.
function way_find(k, code, base, back, n, d, stem)
  local t = base.templates[stem]
  local way = t and t.lessons == lessons and way_again(t, base) or way_new(k, code, base, back, n, d and d.text or '', stem)
  ways[base] = ways[base] or {}
  ways[base][stem], way_count = way, way_count + 1
  return way
end

end

local plain = {} -- the steps, by verb

-- The phase of jobs that take this. Those that come to it from one phase have the same mark, as ways do not outlive it.
local function phase_of(way, d, mark)
  local base = way.phase
  local phase = {head = base.head, takes = d, base = base, mark = mark}
  way.phases[d] = phase
  return phase
end

do
local function is_new(id)
  columns.ask()
  return raw[id] == false
end

-- Converts the record of a job that began on one node to another node, after its head.
local function back_of(n, way, d, term)
  local record = way.record
  local node_at, about = TEXTS + 1, nil -- the rule saw a job without a demand
  if d then
    about = sub(record, EPOCH + EPOCH_BYTES, COUNTED - 1) .. char(mark) .. sub(record, COUNTED + 1, TEXTS - 1) ..
      d.text .. '\0'
  else
    about = sub(record, EPOCH + EPOCH_BYTES, node_at - 1)
  end
  local back = sub(record, ABOUT, EPOCH - 1) .. n.epoch_text .. about .. n.id .. sub(record, node_at + #way.node)
  n.backs[term] = back
  return back
end

-- By a term of a new job: what it takes besides its slot; false: nothing; true: more than the steps can handle. And the
-- term without its demand.
local term_takes, term_stems, term_count = {}, {}, 0
local TERMS_MAX = 1024

local function term_find(term)
  local _, _, _, _, _, type_at = unpack_struct(TERM, term)
  local type, demand = type_and_demand(term, type_at)
  local d = takes_of(demand)
  if d == nil then d = true end
  if term_count == TERMS_MAX then term_stems, term_takes, term_count = {}, {}, 0 end
  term_stems[term], term_takes[term], term_count = sub(term, 1, type_at - 1) .. type, d, term_count + 1
  return d
end

plain[RESERVE] = function(id, node, kind, spare, code, k)
  local n, term = known[node] or keep_node(node), terms[kind]
  local room = n and n.room
  if not n or room <= spare or jobs[id] or (touched and U.jobs[id] ~= nil) or
    (not is_fresh[code] and not is_new(id)) then
    return nil
  end
  local stem, s, d, needs, left = term, n.stock, term_takes[term], nil, nil
  if d == nil then d = term_find(term) end
  if d then
    stem = term_stems[term]
    if d == true then return nil end
    needs = d.moves
    if needs then
      if not s then return nil end
      left = s.left.more[needs]
      if left == nil then left = resources.left_more(s, needs) end
      if not left then return nil end
    end
    if not d.is_open and not limits.may_start(d, #codes) then return nil end
  end
  local of = ways[NEW_JOB]
  local way = of and of[stem]
  if way == nil then way = way_find(k, code, NEW_JOB, nil, n, d, stem) end
  if not way then return nil end
  if d then
    if d.is_open then d.starts = d.starts + 1 else limits.start(d) end
    if d.full_round ~= full_round then limits.hold_all(d, id, full_round) end
    if needs then
      local reserved = s.reserved
      s.reserved, s.left, s.is_changed = reserved.more[needs] or resources.more(reserved, needs), left, true
    end
    if n.backs_mark ~= mark then n.backs, n.backs_mark = {}, mark end -- the mark is part of records with a demand
  end
  if raw then raw[id] = nil end -- from now on it is in `jobs` or in Redis
  local back = n.backs[term] or back_of(n, way, d, term)
  local phase, counts = d and (way.phases[d] or phase_of(way, d, mark)) or way.phase, n.counts + ONE_RESERVED
  local record = phase.head .. back
  if not n.is_changed then
    local last = changes + 1
    n.is_changed, changed[last], changes = true, n, last
  end
  local list = n.owed
  local listed = list.count + 1
  list[listed] = id
  list.count = listed
  n.counts = counts
  n.room = room - 1
  jobs[id] = {back = back, node = n, phase = phase, way = way}
  list = way.list
  listed = list.count + 1
  list[listed] = id
  list.count = listed
  made = made + 1
  if not created then created, U.owes = U.created, true end
  created[made] = id
  active = active + 1
  local to, last = row, size + 4
  to[last - 3] = id
  to[last - 2] = record
  to[last - 1] = id .. ':s'
  at = at + 1
  to[last] = A[at]
  size = last
  if has_more[code] then note_session(text(), text(), text()) end
  local told = n.texts[counts] or counts_text(n, counts)
  if s then
    left = left or s.left
    told = left.told[told] or resources.tell(left, told)
  end
  return told, record
end

end

plain[ACK] = function(id, node, kind, attempt, code, k)
  local n = known[node] or keep_node(node)
  local j = n and (jobs[id] or keep_job(id, n))
  if not j or (j.node ~= n and not join(j, n)) then return nil end
  local phase, back, s, term = j.phase, j.back, n.stock, terms[kind]
  local d = phase.takes
  local base = d and phase.base or phase
  local of = ways[base]
  local way = of and of[term]
  if way == nil then way = way_find(k, code, base, back, n, d, term) end
  if not way or way.attempt ~= attempt then return nil end
  local counts = n.counts + ONE_RUNNING - ONE_RESERVED
  if counts < 0 or way.reach < (way.is_f2f and n.f2f_until or n.task_until) then return nil end
  local needs, fewer = d and d.moves, nil
  if needs then
    if not s then return nil end
    local reserved = s.reserved
    fewer = reserved.less[needs]
    if fewer == nil then fewer = resources.less(reserved, needs) end
    if not fewer then return nil end
  end
  if has_more[code] then -- which send it acknowledges: identical jobs were dispatched at the same time
    if A[at + 1] ~= way.sent then return nil end
    at = at + 1
  end
  if needs then
    local running = s.running
    s.reserved, s.running, s.is_changed = fewer, running.more[needs] or resources.more(running, needs), true
  end
  phase = d and (way.phases[d] or phase_of(way, d, phase.mark)) or way.phase
  local record, list = phase.head .. back, way.list
  if j.way then
    j.way = way
  else
    local taken, takes, mark = n.taken, n.takes + 2, way.mark
    taken[takes - 1] = id
    taken[takes] = mark and mark .. n.epoch_text or way.hold
    n.takes, has_holds = takes, true
  end
  j.phase = phase
  if list then wheel.add(list, id) end
  if not n.is_changed then
    local last = changes + 1
    n.is_changed, changed[last], changes = true, n, last
  end
  n.counts = counts
  local last = size + 2
  row[last - 1] = id
  row[last] = record
  size = last
  local told = n.texts[counts] or counts_text(n, counts)
  if s then
    local left = s.left
    told = left.told[told] or resources.tell(left, told)
  end
  return told, record
end

plain[FINISH] = function(id, node, _, attempt, code, k)
  local n = known[node] or keep_node(node)
  local j = n and (jobs[id] or keep_job(id, n))
  if not j or (j.node ~= n and not join(j, n)) then return nil end
  local phase, back, s, left = j.phase, j.back, n.stock, nil
  local d = phase.takes
  local base = d and phase.base or phase
  local of = ways[base]
  local way = of and of['']
  if way == nil then way = way_find(k, code, base, back, n, d, '') end
  if not way or way.attempt ~= attempt then return nil end
  local counts = n.counts
  if counts % ONE_RESERVED < ONE_RUNNING then return nil end
  counts = counts - ONE_RUNNING
  if d then
    if not d.is_gated then limits.gate_open(d) end
    if d.is_awaited then return nil end
    local needs = d.moves
    if needs then
      if not s then return nil end
      local running, held = s.running, s.left
      local fewer = running.less[needs]
      left = held.less[needs]
      if fewer == nil then fewer = resources.less(running, needs) end
      if left == nil then left = resources.left_less(s, needs) end
      if not fewer or not left then return nil end
      s.running, s.left, s.is_changed = fewer, left, true
    end
    if holding[id] then
      limits.drop_all(d, id)
      full_round = full_round + 1
    end
    d.stops = d.stops + 1
    if phase.mark ~= mark then d.uncounted = d.uncounted + 1 end
  end
  local head = way.phase.head
  local record
  if has_more[code] then
    at = at + 1
    record = head .. back .. A[at] -- the result comes last
  else
    record = head .. back
  end
  if not j.way then
    local ends = n.ends + 1
    n.ended[ends] = id
    n.ends, has_holds = ends, true
  end
  jobs[id] = nil
  if not n.is_changed then
    local last = changes + 1
    n.is_changed, changed[last], changes = true, n, last
  end
  n.counts = counts
  n.room = n.room + 1
  active = active - 1
  local last = size + 2
  row[last - 1] = id
  row[last] = record
  size = last
  local told = n.texts[counts] or counts_text(n, counts)
  if s then
    left = left or s.left
    told = left.told[told] or resources.tell(left, told)
  end
  return told, record
end

do
local function turned(step)
  return step and function(id, node, kind, first, code, k)
    columns.turn(id)
    return step(id, node, kind, first, code, k)
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

-- From now on this layout is written.
function columns.use(new)
  job, node_of = new.job, new.node
  SAME_REST = pack(PACKED.BOUND, 0) .. pack(PACKED.COUNT_REST, 0, 1)
  LEASE, ABOUT, EPOCH, COUNTED, TEXTS = job.at.lease, job.from.about, job.at.epoch, job.at.counted, job.from.texts
  columns.forget()
  steps_begin()
end

end

end

columns.make()
