-- The verbs that come with every job: PUT, RESERVE, COMMIT, FINISH. They come as columns (see
-- redis_columns.c), because taking each op apart would cost more than the work. Nearly always they
-- are the three steps of a job that goes well, a new job that its first candidate takes, its ACK, its
-- DONE: those are done here. Each step makes sure that nothing is out of the ordinary, else it answers
-- nil, having changed nothing, and the verb itself decides. What is right is written there; here is
-- only what is fast: a call of a function costs as much as ten lines of Lua, a new text or table as
-- much as five, so there are few of them; and what a batch learns of a job or a node is kept for the
-- next (see `kept` in unit.lua).
columns.steps = {} -- by code: the fast way; answers the counters of the node and the record of the job

do
local ZERO = '\0\0\0\0\0\0' -- no time
local PUT, RESERVE, COMMIT, FINISH = 1, 2, 3, 4 -- a code is one of these and the sum of what holds
local FAST, OTHER_BUCKET, MORE_TEXT, FRESH = 8, 16, 32, 64
-- The columns. Codes are of all ops; `firsts` is what a fast step compares: slots that stay free, the
-- attempt; `kinds` is which of the terms a row has.
local codes, firsts, kinds, ids, nodes, terms
local known_terms -- by kind: what a step made of it, in this batch
local rests, rest_of_row, rest_at -- one text for all rows: what only the verbs read; and where we are
local buckets = {} -- by row. It outlives the batch, because it would have to grow again each time
local raw, raw_nodes, changed, changes, now -- of U: what every step needs
local jobs, known -- of `kept`: jobs that hold a slot, and nodes
local ending -- what a DONE makes of the times of a job: due, updated, ended
local verb_of, is_fast, is_other, has_more, is_fresh = {}, {}, {}, {}, {} -- by code
local small, letters = {}, {} -- whole numbers and bytes, packed
local stages = {} -- by the first bytes of a record: what may come next, and what they become then

do
local formats = {c14 = {}, s = {}, Bc0 = {}} -- each so many times

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
  codes, known_terms = {byte(packed, 1, count)}, {}
  firsts = {byte(packed, from, from + rows - 1)}
  from = from + rows
  kinds = {byte(packed, from, from + rows - 1)}
  ids, from = list('c14', rows, packed, from + rows)
  nodes, from = list('s', rows, packed, from)
  terms = list('Bc0', term_count, packed, from)
  rests, rest_of_row, rest_at = more, 1, 1
  return codes
end

end

function columns.forget()
  known_terms = {}
end

-- Which records are needed. Answers the nodes.
function columns.ask()
  local k, bucket, asked = 0, nil, {}
  jobs, known = kept.jobs, kept.nodes
  for i = 1, #codes do
    local code = codes[i]
    if code ~= 0 then
      k = k + 1
      local id, node = ids[k], nodes[k]
      if is_other[code] then bucket = bucket_get(sub(id, 1, BUCKET)) end
      buckets[k] = bucket
      if not jobs[id] and not is_fresh[code] then bucket_ask(bucket, id) end
      if not known[node] then asked[#asked + 1] = node end
    end
  end
  return asked, k
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
  op.ttl, op.callback, op.timeout, op.owner, op.max, from = unpack_struct('<i8Bxi6I4B', terms[kinds[k]])
  op.type = sub(terms[kinds[k]], from + 2)
  op.attempt, op.hold, op.has_spec, op.has_idem = 1, 0, 1, 0
  op.not_after, from = unpack_struct('<i8', rest)
  return rest, from
end

local function put_long(op, k)
  local rest, from = rest_of(k), nil
  op.has_spec, op.has_idem, op.attempt, op.hold, op.ttl, op.callback, op.timeout, op.owner, op.max,
    op.not_after, op.type, from = unpack_struct('<BBi4i8i8Bi8I4i4i8Bc0', rest)
  return rest, from
end

local function put_op(k, letter, code)
  local op = op_of(k, letter)
  local rest, from = (is_fast[code] and put_fast or put_long)(op, k)
  local spare, count
  spare, count, from = unpack_struct('<i4B', rest, from)
  op.callback = op.callback == 1
  op.nodes, op.spares = {count > 0 and nodes[k] or nil}, {spare}
  for i = 2, count do op.spares[i], op.nodes[i], from = unpack_struct('<i4Bc0', rest, from) end
  if op.has_spec == 1 then op.spec = text() end
  if has_more[code] then op.session, op.pool, op.lang_pair = text(), text(), text() end
  if op.has_idem == 1 then op.idem, op.fingerprint = text(), text() end
  return op
end

local function commit_op(k, letter, code)
  local op, has_node = op_of(k, letter), 1
  if is_fast[code] then
    op.attempt, op.not_after = firsts[k], unpack_struct('<i8', rest_of(k))
    op.running_ttl, op.stop_grace = unpack_struct('<i8i8', terms[kinds[k]])
  else
    has_node, op.attempt, op.not_after, op.running_ttl, op.stop_grace =
      unpack_struct('<Bi4i8i8i8', rest_of(k))
  end
  op.node = has_node == 1 and nodes[k] or nil
  return op
end

local DONE_OUTCOME = 0 -- enum store_outcome

local function finish_op(k, letter, code)
  local op, has_node, has_reason = op_of(k, letter), 1, 0
  if is_fast[code] then
    op.attempt, op.outcome, op.owner, op.hold = firsts[k], DONE_OUTCOME, 0, 0
    op.not_after = unpack_struct('<i8', rest_of(k))
  else
    local left, want_record, blames
    has_node, op.attempt, op.not_after, op.outcome, has_reason, left, want_record, blames, op.owner,
      op.hold = unpack_struct('<Bi4i8BBBBBI4i8', rest_of(k))
    op.left, op.want_record, op.blames = left == 1, want_record == 1, blames == 1
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
  local reader = readers[verb_of[code]]
  return reader.read(k, reader.letter, code)
end

end

-- The steps.

local function moment(ms)
  return pack('<i6', ms)
end

function columns.open()
  raw, raw_nodes, changed, changes, now = U.raw, U.raw_nodes, U.changed, 0, U.now
  ending = ZERO .. moment(now) .. moment(now)
end

local function int4(value)
  local packed = small[value]
  if not packed then
    packed = pack('<i4', value)
    if value < 65536 then small[value] = packed end
  end
  return packed
end

local function first_bytes(state, lease, attempt, place, told, callback, timed)
  return char(state, lease, attempt, NONE, 0, place, told, callback, timed)
end

-- Where its list has the job; nil when it has not.
local function place_of(n, id)
  local wanted = ' ' .. id
  for at = 1, n.count do
    if n[at] == wanted then return at end
  end
end

-- The node was read again since the job was.
local function join(j, id, n)
  local at = j.node.id == n.id and place_of(n, id)
  if at then j.node, j.at = n, at end
end

-- What will be kept of a job: its record, the stage it is in, until when, on which node and where in its
-- list, how long it may run, and what of the record a next step leaves as it is; nil when it is not one
-- that goes well, or a verb of this batch has its own of it.
local function keep_job(id, n)
  local packed = raw[id]
  if not packed or (U.touched and U.jobs[id] ~= nil) then return nil end
  local first, due = unpack_struct('<c9i6', packed)
  -- One that stands on the wheel and in the list of a node holds a slot there: its lease is neither
  -- over nor of an old epoch.
  local at = stages[first] and place_of(n, id)
  if not at then return nil end
  local j = {
    record = packed, stage = stages[first], due = due, node = n, at = at,
    limit = unpack_struct('<i6', packed, 62), ran = sub(packed, 28, 39), back = sub(packed, 40),
  }
  jobs[id] = j
  return j
end

-- The list has a part for each job that holds a slot; '' where one was.
local function keep_node(node)
  local packed = raw_nodes[node]
  if not packed or (U.touched and U.nodes[node] ~= nil) then return nil end
  local health, reserved, running, max, epoch, own = unpack_struct('<Bi4i4i4c4c19', packed)
  local n = {
    id = node, health = health, reserved = reserved, running = running, max = max, epoch = epoch,
    limits = sub(packed, 10, COUNTS_BYTES), own = own, count = 0, live = 0, is_changed = false,
  }
  for from = NODE_BYTES + 1, #packed, 15 do -- a space and an id
    n.count = n.count + 1
    n[n.count] = sub(packed, from, from + 14)
  end
  n.live = n.count
  known[node] = n
  return n
end

-- What answers tell of a node.
local function counts_of(n)
  local reserved, running = n.reserved, n.running
  return letters[n.health] .. (small[reserved] or int4(reserved)) ..
    (small[running] or int4(running)) .. n.limits
end

do
-- Where jobs were goes when it is most of the list.
local function list_shrink(n)
  local live = 0
  for at = 1, n.count do
    local part = n[at]
    if part ~= '' then
      live = live + 1
      n[live] = part
      local j = jobs[sub(part, 2)]
      if j then j.at = live end
    end
  end
  n.count = live
end

function columns.node_text(n)
  if n.live == 0 then return counts_of(n) .. n.own end
  if n.count == 1 then return counts_of(n) .. n.own .. n[1] end
  if n.count > 2 * n.live + 8 then list_shrink(n) end
  return counts_of(n) .. n.own .. concat(n, '', 1, n.count)
end

end

-- What both became, for Redis and for whoever asked.
local function put_both(k, record, n)
  local b = buckets[k]
  local row, at = b.row, b.size
  row[at + 1], row[at + 2], b.size = ids[k], record, at + 2
  if not n.is_changed then
    n.is_changed = true
    changes = changes + 1
    changed[changes] = n
  end
  return counts_of(n), record
end

function columns.write_nodes(set)
  for i = 1, changes do
    local n = changed[i]
    n.is_changed = false
    set[2 * i - 1], set[2 * i] = n.id, columns.node_text(n)
  end
end

-- What all jobs with this term have in common in this batch: the record is `head`, `filed`, the epoch of
-- the node, `about`, the name of the node, `type`.
local function term_of(kind)
  local ttl, callback, timed, about, from = unpack_struct('<i8BBc13', terms[kind])
  local due = later(now, ttl)
  if tick_of(due) <= U.wheel_at or due > now + WHEEL_FAR_MS then return nil end
  local stamp, begun = moment(due), moment(now)
  local first = first_bytes(DISPATCHED, RESERVED_LEASE, 1, AT_WHEEL, 0, callback, timed)
  local term = {
    head = first .. stamp .. begun .. ZERO .. ZERO .. ZERO, filed = stamp .. begun .. begun,
    about = about, type = '\0' .. sub(terms[kind], from) .. '\0\0', list = wheel_list(due), due = due,
    stage = stages[first], limit = unpack_struct('<i6', about),
  }
  known_terms[kind] = term
  return term
end

local function reserve_step(k, code)
  local id, node = ids[k], nodes[k]
  local n, before = known[node] or keep_node(node), raw[id]
  if not n or before or (before == nil and not is_fresh[code]) or jobs[id] or
    (U.touched and U.jobs[id] ~= nil) or n.health ~= HEALTH.READY or n.max <= 0 or
    n.running + n.reserved >= n.max - firsts[k] then
    return nil
  end
  local term = known_terms[kinds[k]] or term_of(kinds[k])
  if not term then return nil end
  local back = term.filed .. n.epoch .. term.about .. node .. term.type
  local record, at = term.head .. back, n.count + 1
  n[at], n.count, n.live, n.reserved = ' ' .. id, at, n.live + 1, n.reserved + 1
  jobs[id] = {
    record = record, stage = term.stage, due = term.due, node = n, at = at, limit = term.limit,
    ran = nil, back = back,
  }
  bucket_put(buckets[k], id .. ':s', text())
  wheel_add(term.list, id)
  job_listed(id)
  U.active = U.active + 1
  if has_more[code] then note_session(text(), text(), text()) end
  return put_both(k, record, n)
end

-- What an ACK makes of the times of a job that may run so long: due, updated, ended; acked, run_until.
local function times_of(kind, limit)
  local ttl, grace = unpack_struct('<i8i8', terms[kind])
  local due, run_until = later(now, ttl), 0
  if limit > 0 then
    run_until = later(later(now, limit), grace)
    if due > run_until then due = run_until end
  end
  local acked = moment(now)
  local times = {due = due, text = moment(due) .. acked .. ZERO, ran = acked .. moment(run_until)}
  known_terms[kind] = known_terms[kind] or {}
  known_terms[kind][limit] = times
  return times
end

-- Both ends of a run that is in this stage.
local function run_of(k, stage)
  local id, node = ids[k], nodes[k]
  local n = known[node] or keep_node(node)
  local j = n and (jobs[id] or keep_job(id, n))
  if j and j.node ~= n then join(j, id, n) end
  if j and j.stage.name == stage and j.stage.attempt == firsts[k] and j.node == n and
    j.due > now then
    return j, n
  end
  return nil, nil
end

local function commit_step(k)
  local j, n = run_of(k, COMMIT)
  if not j then return nil end
  local by_limit, stage = known_terms[kinds[k]], j.stage
  local times = by_limit and by_limit[j.limit] or times_of(kinds[k], j.limit)
  if times.due < j.due or n.reserved < 1 then return nil end
  n.reserved, n.running = n.reserved - 1, n.running + 1
  local ran = times.ran
  local record = stage.to .. times.text .. ran .. j.back
  j.record, j.ran, j.due, j.stage = record, ran, times.due, stage.next
  return put_both(k, record, n)
end

local function finish_step(k, code)
  local j, n = run_of(k, FINISH)
  if not j or n.running < 1 or n.health == HEALTH.NONE then return nil end
  local id = ids[k]
  n.running, n.live, n[j.at] = n.running - 1, n.live - 1, ''
  if n.live == 0 then n.count = 0 end
  jobs[id] = nil
  U.active = U.active - 1
  local record = has_more[code] and j.stage.to .. ending .. j.ran .. j.back .. text() or
    j.stage.to .. ending .. j.ran .. j.back
  raw[id] = record -- it is kept no longer, but may be asked for once more
  return put_both(k, record, n)
end

local function steps_begin()
  local steps = {[RESERVE] = reserve_step, [COMMIT] = commit_step, [FINISH] = finish_step}
  for code = 1, 2 * FRESH - 1 do
    verb_of[code] = code % FAST
    is_fast[code] = floor(code / FAST) % 2 == 1
    is_other[code] = floor(code / OTHER_BUCKET) % 2 == 1
    has_more[code] = floor(code / MORE_TEXT) % 2 == 1
    is_fresh[code] = floor(code / FRESH) % 2 == 1
    if is_fast[code] then columns.steps[code] = steps[code % FAST] end
  end
end

function columns.begin()
  steps_begin()
  for value = 0, 255 do letters[value] = char(value) end
  for attempt = 1, ATTEMPTS_MAX do
    for timed = 0, 1 do
      for callback = CALLBACK.NONE, CALLBACK.WANTED do
        local sent = first_bytes(DISPATCHED, RESERVED_LEASE, attempt, AT_WHEEL, 0, callback, timed)
        local acked = first_bytes(ACKED, RUNNING_LEASE, attempt, AT_WHEEL, 0, callback, timed)
        local done = first_bytes(DONE, NONE, attempt, AT_NOWHERE, TOLD_DONE, callback, timed)
        -- Who wants to be called back has an end that is not plain.
        local name = callback == CALLBACK.NONE and FINISH or nil
        stages[acked] = {name = name, attempt = attempt, to = done}
        stages[sent] = {name = COMMIT, attempt = attempt, to = acked, next = stages[acked]}
      end
    end
  end
end

end
