-- The verbs that come with every job: PUT, RESERVE, COMMIT, FINISH. They come as columns (see
-- redis_columns.c), because taking each op apart would cost more than the work. Nearly always they
-- are the three steps of a job that goes well, a new job that its first candidate takes, its ACK, its
-- DONE: those are done here. Each step makes sure that nothing is out of the ordinary, else it answers
-- nil, having changed nothing, and the verb itself decides. What is right is written there; here is
-- only what is fast: a call of a function costs as much as ten lines of Lua, a new text or table as
-- much as five, so there are few of them; and what a batch learns of a job or a node is kept for the
-- next (see `kept` in unit.lua).
local columns = {steps = {}} -- by code: the fast way; answers the records of the node and of the job

do
local ZERO = '\0\0\0\0\0\0' -- no time
local PUT, RESERVE, COMMIT, FINISH = 1, 2, 3, 4 -- a code is one of these and the sum of what holds
local FAST, OTHER_BUCKET, MORE_TEXT = 8, 16, 32
local codes, ids, nodes, firsts, seconds, thirds, rests -- the columns; codes are of all ops
local buckets = {} -- by row. It outlives the batch, because it would have to grow again each time
local raw, raw_nodes, set, size, now -- of U: what every step needs
local jobs, known -- of `kept`: jobs that hold a slot, and nodes
local ending -- what a DONE makes of the times of a job: due, updated, ended
local verb_of, is_other, has_more = {}, {}, {} -- by code
local small, letters = {}, {} -- whole numbers and bytes, packed
local stages = {} -- by the first bytes of a record: what may come next, and what they become then

function columns.read(packed)
  codes, ids, nodes, firsts, seconds, thirds, rests = cmsgpack.unpack(packed)
  return codes
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
      if not jobs[id] then bucket_ask(bucket, id) end
      if not known[node] then asked[#asked + 1] = node end
    end
  end
  return asked, k
end

do -- Rows as the verbs want them; texts follow as arguments of their own.
local NO_JOB = 'j0000000000000'

local function op_of(k, letter)
  return {verb = letter, job = ids[k] ~= NO_JOB and ids[k] or ''}
end

local function put_op(k, letter)
  local op, rest = op_of(k, letter), rests[k]
  local has_spec, has_session, has_idem, count, from
  op.ttl, op.callback = unpack_struct('<i8B', seconds[k])
  op.callback = op.callback == 1
  op.timeout, op.owner = unpack_struct('<i6I4', thirds[k])
  has_spec, has_session, has_idem, op.attempt, op.hold, op.max, op.not_after, op.type, count, from =
    unpack_struct('<BBBi4i8i4i8Bc0B', rest)
  op.nodes, op.spares = {count > 0 and nodes[k] or nil}, {firsts[k]}
  for i = 2, count do op.spares[i], op.nodes[i], from = unpack_struct('<i4Bc0', rest, from) end
  if has_spec == 1 then op.spec = text() end
  if has_session == 1 then op.session, op.pool, op.lang_pair = text(), text(), text() end
  if has_idem == 1 then op.idem, op.fingerprint = text(), text() end
  return op
end

-- The rest of one that may be fast is only when it may not begin any more.
local function commit_op(k, letter)
  local op, has_node = op_of(k, letter), 1
  op.running_ttl, op.stop_grace = unpack_struct('<i8i8', seconds[k])
  if type(rests[k]) == 'number' then
    op.not_after = rests[k]
  else
    has_node, op.not_after = unpack_struct('<Bi8', rests[k])
  end
  op.attempt, op.node = firsts[k], has_node == 1 and nodes[k] or nil
  return op
end

local DONE_OUTCOME = 0 -- enum store_outcome

local function done_op(op, k, code)
  op.not_after, op.outcome, op.owner, op.hold = rests[k], DONE_OUTCOME, 0, 0
  op.attempt, op.node, op.reason, op.reason_json = firsts[k], nodes[k], '', 'null'
  op.result = has_more[code] and text() or nil
  return op
end

local function finish_op(k, letter, code)
  local op = op_of(k, letter)
  local has_node, has_result, has_reason, left, want_record, blames
  if type(rests[k]) == 'number' then return done_op(op, k, code) end
  has_node, op.not_after, op.outcome, has_result, has_reason, left, want_record, blames, op.owner,
    op.hold = unpack_struct('<Bi8BBBBBBI4i8', rests[k])
  op.attempt, op.node = firsts[k], has_node == 1 and nodes[k] or nil
  op.left, op.want_record, op.blames = left == 1, want_record == 1, blames == 1
  op.result = has_result == 1 and text() or nil
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
  raw, raw_nodes, set, size, now = U.raw, U.raw_nodes, U.node_row, 0, U.now
  ending = ZERO .. moment(now) .. moment(now)
end

local function int4(value)
  local packed = pack('<i4', value)
  if value < 65536 then small[value] = packed end
  return packed
end

local function first_bytes(state, lease, attempt, place, told, callback, timed)
  return char(state, lease, attempt, NONE, 0, place, told, callback, timed)
end

-- What will be kept of a job: its record, the stage it is in, until when, and on which node; nil when
-- it is not one that goes well, or a verb of this batch has its own of it.
local function keep_job(id, node, n)
  local packed = raw[id]
  if not packed or (U.touched and U.jobs[id] ~= nil) then return nil end
  local first, due = unpack_struct('<c9i6', packed)
  -- One that stands on the wheel and in the list of a node holds a slot there: its lease is neither
  -- over nor of an old epoch.
  if not stages[first] or not find(n.tail, id, 1, true) then return nil end
  local j = {record = packed, stage = stages[first], due = due, node = node}
  jobs[id] = j
  return j
end

local function keep_node(node)
  local packed = raw_nodes[node]
  if not packed or (U.touched and U.nodes[node] ~= nil) then return nil end
  local n = {tail = sub(packed, 10)}
  n.health, n.reserved, n.running, n.max, n.epoch = unpack_struct('<Bi4i4i4c4', packed)
  known[node] = n
  return n
end

function node_text(n)
  return letters[n.health] .. int4(n.reserved) .. int4(n.running) .. n.tail
end

-- What both became, for Redis and for whoever asked.
local function put_both(k, record, n)
  local b, reserved, running = buckets[k], n.reserved, n.running
  local row, at = b.row, b.size
  local packed = letters[n.health] .. (small[reserved] or int4(reserved)) ..
    (small[running] or int4(running)) .. n.tail
  row[at + 1], row[at + 2], b.size = ids[k], record, at + 2
  set[size + 1], set[size + 2] = nodes[k], packed
  size = size + 2
  return packed, record
end

-- What all jobs with this term have in common in this batch.
local function term_of(key)
  local ttl, callback, timed = unpack_struct('<i8BB', key)
  local due = later(now, ttl)
  if tick_of(due) <= U.wheel_at or due > now + WHEEL_FAR_MS then return nil end
  local stamp, begun = moment(due), moment(now)
  local first = first_bytes(DISPATCHED, RESERVED_LEASE, 1, AT_WHEEL, 0, callback, timed)
  local term = {
    head = first .. stamp .. begun .. ZERO .. ZERO .. ZERO .. stamp .. begun .. begun,
    list = wheel_list(due), due = due, stage = stages[first],
  }
  U.terms[key] = term
  return term
end

local function reserve_step(k, code)
  local id, node = ids[k], nodes[k]
  local n = known[node] or keep_node(node)
  if not n or raw[id] ~= false or jobs[id] or (U.touched and U.jobs[id] ~= nil) or
    n.health ~= HEALTH.READY or n.max <= 0 or n.running + n.reserved >= n.max - firsts[k] then
    return nil
  end
  local term = U.terms[seconds[k]] or term_of(seconds[k])
  if not term then return nil end
  local record = term.head .. n.epoch .. thirds[k]
  n.reserved, n.tail = n.reserved + 1, n.tail .. ' ' .. id
  jobs[id] = {record = record, stage = term.stage, due = term.due, node = node}
  bucket_put(buckets[k], id .. ':s', text())
  wheel_add(term.list, id)
  job_listed(id)
  U.active = U.active + 1
  if has_more[code] then note_session(text(), text(), text()) end
  return put_both(k, record, n)
end

-- What an ACK makes of the times of a job: due, updated, ended, acked, run_until.
local function times_of(key, terms, limit)
  local ttl, grace = unpack_struct('<i8i8', terms)
  local due, run_until = later(now, ttl), 0
  if limit > 0 then
    run_until = later(later(now, limit), grace)
    if due > run_until then due = run_until end
  end
  local acked = moment(now)
  local times = {due = due, text = moment(due) .. acked .. ZERO .. acked .. moment(run_until)}
  U.times[key] = times
  return times
end

local function timed_times(terms, packed)
  local timeout = sub(packed, 62, 67)
  local key = terms .. timeout
  return U.times[key] or times_of(key, terms, unpack_struct('<i6', timeout))
end

-- Both ends of a run that is in this stage.
local function run_of(k, stage)
  local id, node = ids[k], nodes[k]
  local n = known[node] or keep_node(node)
  local j = n and (jobs[id] or keep_job(id, node, n))
  if j and j.stage.name == stage and j.stage.attempt == firsts[k] and j.node == node and
    j.due > now then
    return j, n
  end
  return nil, nil
end

local function commit_step(k)
  local j, n = run_of(k, COMMIT)
  if not j then return nil end
  local terms, stage = seconds[k], j.stage
  local times = stage.timed and timed_times(terms, j.record) or U.times[terms] or
    times_of(terms, terms, 0)
  if times.due < j.due or n.reserved < 1 then return nil end
  n.reserved, n.running = n.reserved - 1, n.running + 1
  j.record = stage.to .. times.text .. sub(j.record, 40)
  j.due, j.stage = times.due, stage.next
  return put_both(k, j.record, n)
end

local function finish_step(k, code)
  local j, n = run_of(k, FINISH)
  if not j or n.running < 1 or n.health == HEALTH.NONE then return nil end
  local id, tail = ids[k], n.tail
  local at = find(tail, id, 1, true)
  n.running, n.tail = n.running - 1, sub(tail, 1, at - 2) .. sub(tail, at + 14)
  jobs[id] = nil
  U.active = U.active - 1
  local record = j.stage.to .. ending .. sub(j.record, 28)
  if has_more[code] then record = record .. text() end
  raw[id] = record -- it is kept no longer, but may be asked for once more
  return put_both(k, record, n)
end

local function steps_begin()
  local steps = {[RESERVE] = reserve_step, [COMMIT] = commit_step, [FINISH] = finish_step}
  for code = 1, FAST + OTHER_BUCKET + MORE_TEXT + FAST - 1 do
    verb_of[code] = code % FAST
    is_other[code] = floor(code / OTHER_BUCKET) % 2 == 1
    has_more[code] = floor(code / MORE_TEXT) % 2 == 1
    if floor(code / FAST) % 2 == 1 then columns.steps[code] = steps[code % FAST] end
  end
end

function columns_begin()
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
        stages[sent] = {name = COMMIT, attempt = attempt, to = acked, timed = timed == 1,
          next = stages[acked]}
      end
    end
  end
end

end
