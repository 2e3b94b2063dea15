-- The unit of work: what a batch has read and changed. Records are read once, changed, and written once at the end, so
-- that sixteen jobs cost little more than one. Every verb of the batch sees the changes of those before it. A record is
-- a packed text (`raw`), which columns.lua changes directly, or a table made from it, which then takes precedence.
-- While Redis 7.0 loads a library there is no `redis.call`, `string` or `unpack`, so they are fetched with the first
-- batch. Names in capitals not explained here are from the first part, which is generated from the C side (tables.c).
local call, byte, find, char, unpack_list, concat, sort, floor

local ARGS_MAX = 2000 -- of one redis.call
local verbs = {} -- by letter: runs an op and returns its answer
-- The rules of the verbs every job needs, without the encoding of answers: columns.lua uses them, too. Each returns a
-- table: `err`, `duplicate`; the `job` and `node` to report; and whatever else the verb answers.
local rules = {}

local U -- this batch
local A, at -- its arguments, and the position in them

-- What columns.lua keeps of jobs and nodes from batch to batch. It is valid as long as `state` equals what Redis has:
-- then no other instance has called since and the store is the same. A verb that takes its own copy of a record removes
-- it here. `counts` are texts that nodes share, `unit` is the U of a batch without verbs; `row` is kept so that it need
-- not grow again. `gated`: see columns.gated(). `owed` and `owes`: see there. `is_table`: see stamps.lengthen.
-- `recount`: see there. `stocks`: needs.lua; `keys`: limit.lua; `holding`: by id, jobs that may be holders of a key.
local kept = {
  jobs = {}, nodes = {}, counts = {}, unit = nil, state = nil, row = {}, gated = nil, owed = {}, owes = 0,
  is_table = false, recount = nil, stocks = {}, dirty_stocks = {}, keys = {}, dirty_keys = {}, new_keys = {},
  holding = {}, key_count = 0,
}
local columns = {} -- columns.lua
local instances = {} -- instance.lua

local AT_NOWHERE, AT_DUE, AT_LAPSED, AT_WHEEL = 0, 1, 2, 3

-- store/record.h describes the layout of records. Redis' Lua hashes every byte of every string it creates, so records
-- are as short as possible and long data is stored separately. This is the layout being written; a record that is read
-- may have another one, given by its first byte.
local layout = {format = 0, job = nil, node = nil, state = nil}
-- The value of `meta.format` in this batch: the format being written (from the next batch on, if it changed in this
-- one), the oldest and newest format of records, and since when the instances present could announce what they read.
-- `text`: as read, nil when it must be read again.
local formats = {text = nil, written = 0, oldest = 0, newest = 0, since = 0, changed = false}

local LAZY = { -- most batches need few of U's tables
  __index = function(batch, name)
    local made = {}
    batch[name] = made
    return made
  end,
}

local begin_library, note_work
do -- Lua allows only 200 locals
-- The cost of a call, for a test that checks that it does not grow: commands, their arguments and their replies. The
-- largest is kept in `meta.work`; that of calls made by senders, not by the clock, in `meta.asked`; how many job
-- records such a call read and wrote in `meta.records`; and how often it asked a rule in `meta.rules`.
local work = {work = 0, asked = 0, records = 0, rules = 0}

local function counted(...)
  local got, count = redis.call(...), select('#', ...)
  work.work = work.work + count + (type(got) == 'table' and #got or 0)
  local command, key = ...
  if key and sub(key, 1, #KEY + 2) == KEY .. 'j:' then
    work.records = work.records + (count - 2) / (command == 'HSET' and 2 or 1)
  end
  return got
end

function note_work()
  work.asked = work.work
  for name, value in pairs(work) do
    local most = tonumber(redis.call('HGET', KEY .. 'meta', name) or 0)
    if value > most and (name == 'work' or not U.tidied) then redis.call('HSET', KEY .. 'meta', name, value) end
    work[name] = 0
  end
end

local function count_rules()
  for letter, rule in pairs(rules) do
    rules[letter] = function(op)
      work.rules = work.rules + 1
      return rule(op)
    end
  end
end

function begin_library()
  if TEST_CLOCK then count_rules() end
  call, sub, byte, find = TEST_CLOCK and counted or redis.call, string.sub, string.byte, string.find
  pack, unpack_struct, char = struct.pack, struct.unpack, string.char
  unpack_list, concat, sort, floor = unpack, table.concat, table.sort, math.floor
end

end

local function layout_use(format)
  if layout.format == format then return end
  layout.format = format
  for name, formats in pairs(records) do layout[name] = formats[format] end
  columns.use(layout)
end

-- The next argument.
local function text()
  at = at + 1
  return A[at]
end

local function later(now, ms)
  local sum = now + ms
  return sum < FOREVER and sum or FOREVER
end

local function bucket_of(id)
  return sub(id, 1, BUCKET)
end

-- Runs one command over a long list of arguments, a part at a time, in groups of `width`.
local function call_in_parts(command, key, args, width, count)
  local part, last = ARGS_MAX - ARGS_MAX % (width or 1), count or #args
  if last <= part then
    call(command, key, unpack_list(args, 1, last))
    return
  end
  for from = 1, last, part do
    local to = from + part - 1
    call(command, key, unpack_list(args, from, to < last and to or last))
  end
end

-- Jobs. Their keys have no TTL: only the purge deletes them, once they are over.

local function job_read(id, packed)
  return records.job[byte(packed)].read(id, packed)
end

-- Its place, without decoding the whole record.
local function packed_place(packed)
  return byte(packed, records.job[byte(packed)].at.place)
end

-- Cached until the next change; an answer and the write after it share the text.
local function job_packed(j)
  local packed = j.packed
  if packed then return packed end
  packed = layout.job.pack(j)
  j.packed = packed
  return packed
end

-- As far as this batch has it: nil when not requested, false when there is none.
local function job_raw(id)
  local j = kept.jobs[id]
  if j then return j.phase.head .. j.back end
  return U.raw[id]
end

-- The records of ids[from] to ids[to] as Redis has them, in order; false where there is none. Consecutive ones are
-- mostly in one bucket and are read with one call.
local function records_read(ids, from, to)
  local got = {}
  while from <= to do
    local bucket, last = bucket_of(ids[from]), from
    while last < to and last - from < ARGS_MAX - 1 and bucket_of(ids[last + 1]) == bucket do
      last = last + 1
    end
    local part = call('HMGET', KEY .. 'j:' .. bucket, unpack_list(ids, from, last))
    for i = 1, #part do got[#got + 1] = part[i] end
    from = last + 1
  end
  return got
end

-- What this batch reads and writes in the hash of one bucket: the requested ids, and fields with their values. Later
-- values win.
local function bucket_get(name)
  local b = U.buckets[name]
  if not b then
    b = {ids = nil, asked = 0, row = kept.row or {}, size = 0}
    U.buckets[name], kept.row = b, nil
  end
  return b
end

local function bucket_put(b, field, value)
  local size = b.size
  b.row[size + 1], b.row[size + 2] = field, value
  b.size = size + 2
end

-- One requested twice is read twice.
local function bucket_ask(b, id)
  local asked = b.asked + 1
  b.ids = b.ids or {}
  b.ids[asked], b.asked = id, asked
end

local write_jobs, jobs_fetch
do
local function has_unwritten()
  for _, b in pairs(U.buckets) do
    if b.asked > 0 and b.size > 0 then return true end
  end
  return false
end

-- Reads many at once: one call for each bucket.
function jobs_fetch()
  local raw = U.raw
  if has_unwritten() then write_jobs() end
  for name, b in pairs(U.buckets) do
    for from = 1, b.asked, ARGS_MAX do
      local to = from + ARGS_MAX - 1
      if to > b.asked then to = b.asked end
      local ids = b.ids
      local got = call('HMGET', KEY .. 'j:' .. name, unpack_list(ids, from, to))
      for i = 1, #got do raw[ids[from + i - 1]] = got[i] end
    end
    b.ids, b.asked = nil, 0
  end
end

end

local function jobs_prefetch(ids)
  for i = 1, #ids do
    local id = ids[i]
    if job_raw(id) == nil and id ~= '' then bucket_ask(bucket_get(bucket_of(id)), id) end
  end
  jobs_fetch()
end

local stamps = {APART = ''} -- lease.lua
local owed = {} -- what `h:NODE` does not say yet, see below
local demands, resources = {}, {} -- needs.lua

local function job_get(id)
  local j = U.jobs[id]
  if j == nil then
    local packed = id ~= '' and job_raw(id)
    if packed == nil then
      jobs_prefetch({id})
      packed = U.raw[id]
    end
    j = packed and job_read(id, packed) or false
    owed.leave(id)
    U.jobs[id], kept.jobs[id] = j, nil
  end
  if not j then return nil end
  if j.lease == RUNNING_LEASE then stamps.extend(j) end
  return j
end

local function job_changed(j)
  U.dirty[j.id] = j
  j.packed = nil
end

-- It is in a list from now on.
local function job_listed(id)
  local made = U.made + 1
  U.created[made], U.made = id, made
end

-- A field stored separately from the record: `:s` spec, `:r` a long result, `:h` ended attempts, `:k` its
-- Idempotency-Key, `:a` a request was answered with it by that key. One that this batch is about to write is not in
-- Redis yet.
local function outside_text(j, tail)
  if j.new and j.new[tail] then return j.new[tail] end
  local b, name = bucket_get(bucket_of(j.id)), j.id .. tail
  for i = b.size - 1, 1, -2 do
    if b.row[i] == name then return b.row[i + 1] end
  end
  return call('HGET', KEY .. 'j:' .. bucket_of(j.id), name)
end

-- Nodes. The jobs that hold a slot of a node, or did when their epoch ended, are in a separate hash, `h:NODE`: attempt,
-- time-out and epoch of those the node's stamp renews, an empty value for the others (see stamps.value). So a heartbeat
-- that lists them reads no record.

-- What this batch changes there: the new value by job; false: removed.
local function holds_of(node)
  local holds = U.holds[node]
  if not holds then
    holds = {}
    U.holds[node] = holds
  end
  return holds
end

-- The audit counts a node's leases in parts (chores.lua), one per call. Between the calls leases begin, are
-- acknowledged and end, so every write to `h:NODE` must inform it. `kept.recount` is for one node: how many of those
-- counted are `reserved`, `running` and running `apart`, and as which of these each id was counted.
local recount = {}
do
-- `counted`: by id what a job counts as; for one that takes more than a slot, a table with what it takes.

-- What this job counts as; nil: its lease is of an ended epoch, or it has none there.
function recount.kind(r, j)
  if not j or j.node ~= r.node then return nil end
  if j.lease == RESERVED_LEASE then return j.epoch == r.epoch and 'reserved' or nil end
  if j.lease ~= RUNNING_LEASE or j.epoch < r.runs_from then return nil end
  return j.apart and 'apart' or 'running'
end

local function add(r, what, sign)
  local kind = type(what) == 'table' and what.kind or what
  r[kind] = r[kind] + sign
  if what == kind then return end
  local sums = kind == 'reserved' and r.sums.reserved or r.sums.running
  r.wide[kind] = r.wide[kind] + sign * (what.slots - 1)
  for i = 1, #what.takes do
    local need = what.takes[i]
    sums[need.name] = (sums[need.name] or 0) + sign * need.amount
  end
end

-- It counts as that from now on. Split tables: one large table would be reallocated, and traversed by Lua's garbage
-- collector, all at once.
function recount.set(r, id, kind, j)
  local name = sub(id, -2)
  local part = r.counted[name] or {}
  local was, what = part[id], kind
  if kind and j.demand ~= '' then what = {kind = kind, slots = demands.slots(j), takes = demands.takes(j)} end
  if was then add(r, was, -1) end
  if what then add(r, what, 1) end
  r.counted[name], part[id] = part, what
end

-- Called before this is written to the `h:NODE` of its node. Reads what is known of the job without changing it.
function recount.hear(r, id, holds)
  local j
  if holds then
    local packed = job_raw(id)
    j = rawget(U, 'jobs') and U.jobs[id] or (packed and job_read(id, packed))
  end
  recount.set(r, id, recount.kind(r, j), j)
end
end

local function write_holds()
  columns.write_holds()
  if not rawget(U, 'holds') then return end
  local r = kept.recount
  for node, holds in pairs(U.holds) do
    local add, del = {}, {}
    if r and r.node == node then
      for id, value in pairs(holds) do recount.hear(r, id, value) end
    end
    for id, value in pairs(holds) do
      if value then
        add[#add + 1], add[#add + 2] = id, value
      else
        del[#del + 1] = id
      end
    end
    if #add > 0 then call_in_parts('HSET', KEY .. 'h:' .. node, add, 2) end
    if #del > 0 then call_in_parts('HDEL', KEY .. 'h:' .. node, del) end
  end
  U.holds = nil
end

-- Most jobs end soon after they began. So reservations by the steps of columns.lua are not written to `h:NODE` at once,
-- but only before it is read, once a second, and when there are LIMIT.OWED of them: jobs that have ended by then need
-- no write. Until then a job is owed: its `way` has the value `h:NODE` would have. `kept.owed` has the ids by node,
-- including ended ones; the list `owed` in Redis has all of them, in case the cache is lost; `kept.owes` is their
-- number.
do
local function text_of(j)
  local way = j.way
  return way.mark and way.mark .. j.node.epoch_text or way.hold
end

local function write(list)
  local jobs = kept.jobs
  for i = 1, list.count do
    local id = list[i]
    local j = jobs[id]
    if j and j.way then
      holds_of(j.node.id)[id] = text_of(j)
      j.way = nil
    end
  end
  list.count = 0
end

-- From now on a verb has its own copy of this job.
function owed.leave(id)
  local j = kept.jobs[id]
  if j and j.way then holds_of(j.node.id)[id] = text_of(j) end
end

-- Writes what is owed to `h:NODE` of this node, or of all nodes.
function owed.settle(node)
  if node then
    if kept.owed[node] then write(kept.owed[node]) end
  else
    for _, list in pairs(kept.owed) do write(list) end
  end
  write_holds()
  if not node and kept.owes > 0 then
    call('DEL', KEY .. 'owed')
    kept.owes = 0
  end
end

-- The cache is lost: finds what is owed from the records. Called at the beginning of a batch, before anything has
-- changed.
function owed.find()
  local parts, ids = call('LRANGE', KEY .. 'owed', 0, -1), {}
  if #parts == 0 then return end
  for i = 1, #parts do
    for at = 1, #parts[i], JOB_ID do ids[#ids + 1] = sub(parts[i], at, at + JOB_ID - 1) end
  end
  jobs_prefetch(ids)
  for i = 1, #ids do
    local j = job_get(ids[i])
    if j and j.lease ~= NONE then holds_of(j.node)[j.id] = stamps.value(j) end
  end
  U.jobs, U.nodes = nil, nil -- they were only read
  write_holds()
  call('DEL', KEY .. 'owed')
end

end

local function has_leases(node)
  owed.settle(node)
  return call('EXISTS', KEY .. 'h:' .. node) == 1
end

local function node_get(id)
  local n = U.nodes[id]
  if n == nil then
    local packed = U.raw_nodes[id]
    if kept.nodes[id] then packed = columns.node_text(kept.nodes[id]) end
    if packed == nil then packed = call('HGET', KEY .. 'n', id) end
    n = packed and records.node[byte(packed)].read(id, packed) or false
    U.nodes[id], kept.nodes[id] = n, nil
  end
  return n or nil
end

local function nodes_prefetch(ids)
  if #ids == 0 then return end
  local raw = U.raw_nodes
  local got = call('HMGET', KEY .. 'n', unpack_list(ids))
  for i = 1, #got do raw[ids[i]] = got[i] end
end

local function node_changed(n)
  U.dirty_nodes[n.id] = n
end

-- If it was deleted by hand while it had leases, those belong to an ended epoch.
local function node_new(id)
  local n = {
    id = id, health = 0, own = 0, admin = 0, known = false, max = 0, reserved = 0, running = 0,
    epoch = has_leases(id) and floor(U.now / 1000) or 1, runs_from = 0, registered = 0, version = 0, rest = '',
    apart = 0, task_until = 0, f2f_until = 0, wide = 0, stocked = false,
  }
  n.runs_from = n.epoch
  U.nodes[id] = n
  node_changed(n)
  return n
end

-- Its part of an answer: its counters and its free resources.
local function node_counts(n)
  return sub(layout.node.pack(n), 1, layout.node.from.facts - 1) .. resources.left(n)
end

-- Writing.

do
local NOTHING = {}

local function is_sorted(ids)
  for i = 2, #ids do
    if ids[i] < ids[i - 1] then return false end
  end
  return true
end

-- Jobs that came together and share a bucket are one member of their span's list.
local function write_created()
  local ids, from = U.created, 1
  if not is_sorted(ids) then sort(ids) end
  while from <= #ids do
    local bucket, to = bucket_of(ids[from]), #ids
    while bucket_of(ids[to]) ~= bucket do to = to - 1 end
    local span = sub(bucket, 1, SPAN)
    local text = concat(ids, '', from, to)
    call('ZADD', KEY .. 'l:' .. span, '0', text)
    if U.owes then call('RPUSH', KEY .. 'owed', text) end
    if span ~= U.span then
      call('ZADD', KEY .. 'spans', '0', span)
      if span > U.span then U.span = span end
    end
    from = to + 1
  end
  U.total, U.unlooked = U.total + #ids, U.unlooked + #ids
  if U.owes then kept.owes = kept.owes + #ids end
  U.created, U.made, U.owes = nil, 0, false
end

function write_jobs()
  if U.touched then
    for id, j in pairs(U.dirty) do
      local b = bucket_get(bucket_of(id))
      bucket_put(b, id, job_packed(j))
      for tail, text in pairs(j.new or NOTHING) do bucket_put(b, id .. tail, text) end
    end
    U.dirty = nil
  end
  if U.made > 0 then write_created() end
  for bucket, b in pairs(U.buckets) do
    if b.size > 0 then
      call_in_parts('HSET', KEY .. 'j:' .. bucket, b.row, 2, b.size)
      b.size = 0
    end
  end
end

end

local write_nodes
do
local NOTHING = {}
local set = {} -- names and texts; reused by later batches so that it need not grow again

function write_nodes()
  local size, del = columns.write_nodes(set), NOTHING
  if U.touched then
    del = {}
    for id, n in pairs(U.dirty_nodes) do
      if n.known or has_leases(id) then
        set[size + 1], set[size + 2] = id, layout.node.pack(n)
        size = size + 2
      else
        del[#del + 1] = id
      end
    end
  end
  if size > 0 then
    if not kept.is_table then stamps.lengthen(set[1], set[2]) end
    call_in_parts('HSET', KEY .. 'n', set, 2, size)
  end
  if #del > 0 then call_in_parts('HDEL', KEY .. 'n', del) end
end

end

-- Publishes which nodes changed, and when, for instances that keep a view of the nodes; a number lets them notice a
-- gap. Channels are not per database: the generation identifies the store.
local function publish_nodes()
  if #U.told == 0 then return end
  U.version = U.version + 1
  call('PUBLISH', KEY .. 'ev',
    U.gen .. ' ' .. U.version .. ' ' .. U.now .. ' ' .. concat(U.told, ' '))
end
