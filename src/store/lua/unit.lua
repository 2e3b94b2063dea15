-- The unit of work: what a batch looked at and changed. Records are read once, changed, and written
-- once at the end, so that sixteen jobs cost little more than one. Every verb of the batch sees what
-- those before it did. A record is a packed text (`raw`), which columns.lua changes as it is, or a
-- table made from it, which is then what counts. While Redis 7.0 loads a library there is neither
-- `redis.call` nor `string` nor `unpack`, so they are picked up when a batch comes.
local call, sub, byte, find, pack, unpack_struct, char, unpack_list, concat, sort, floor

local KEY = 'sched:{f}:' -- one hash tag: all keys are in one slot, see docs/redis.md
local FOREVER = 99999999999999 -- as far as Lua writes a whole number without an exponent
local BUCKET = 6 -- the first characters of a job id: 262 s share one hash
local WINDOW = 8 -- and these a member of its list
local ARGS_MAX = 2000 -- of one redis.call
local BUCKET_SPARE_MS = 3600000 -- a bucket nobody sweeps goes by itself this much after its time
local KEEP_MS = 60000 -- how often the newest bucket's time to live is prolonged
local RESULT_MAX = 256 -- a longer one stands beside the record

local ERR = { -- as redis_wire.c knows them
  OK = 0, NOT_FOUND = 1, STALE = 2, ALL_FULL = 3, IDEMPOTENCY = 4, TOO_LATE = 5, BAD_FIELD = 6,
  CONFLICT = 7,
}
local verbs = {} -- by letter

local U -- this batch
local A, at -- its arguments, and where we stand in them

-- What columns.lua keeps of jobs and nodes from batch to batch. It counts as long as `state` is what
-- Redis has: nobody else has called since, and this is the store it was. A verb that has its own of a
-- record forgets it. `counts` are texts that nodes share, `unit` is what was U after a batch without
-- verbs; `row` is kept because it would have to grow again.
local kept = {jobs = {}, nodes = {}, counts = {}, unit = nil, state = nil, row = {}}
local columns = {} -- columns.lua

local NONE, RESERVED_LEASE, RUNNING_LEASE = 0, 1, 2
local AT_NOWHERE, AT_DUE, AT_LAPSED, AT_WHEEL = 0, 1, 2, 3

-- Redis' Lua looks at every byte of every text it makes: records are as short as they can be, and
-- what is long stands beside them. What changes with every step stands first: columns.lua counts on the
-- places. 1 state, 2 lease, 3 attempt, 4 ran_out, 5 probe, 6 place, 7 told, 8 callback, 9 has a
-- time-out, 10 due, 16 updated, 22 ended, 28 acked, 34 run_until, 40 filed, 46 created,
-- 52 dispatched, 58 epoch, 62 timeout, 68 owner, 72 max, 73 keyed, 74 its result stands outside,
-- 75 node, type and reason, each with a zero behind it; then the result. redis_answer.c reads it, too.
local JOB = '<BBBBBBBBBi6i6i6i6i6i6i6i6I4i6I4BBBsss'
-- 1 health, 2 reserved, 6 running, 10 max, 14 epoch, 18 own, 19 admin, 20 known, 21 registered,
-- 29 version, 37 the ids of jobs that hold a slot. The first 17 are what answers carry. Nobody who is
-- not known has a health.
local NODE = '<Bi4i4i4I4BBBi8i8'
local NODE_BYTES, COUNTS_BYTES = 36, 17
local TOLD_TEXT, TOLD_DONE = 1, 2 -- its attempts are a text; it was done at the first one

local LAZY = { -- most batches need few of the tables of U
  __index = function(batch, name)
    local made = {}
    batch[name] = made
    return made
  end,
}

local function begin_library()
  call, sub, byte, find = redis.call, string.sub, string.byte, string.find
  pack, unpack_struct, char = struct.pack, struct.unpack, string.char
  unpack_list, concat, sort, floor = unpack, table.concat, table.sort, math.floor
  columns.begin()
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

-- Runs one command over a long list of arguments, a part at a time; `width` of them belong together.
local function call_in_parts(command, key, args, width, count)
  local part, last = ARGS_MAX - ARGS_MAX % (width or 1), count or #args
  for from = 1, last, part do
    local to = from + part - 1
    call(command, key, unpack_list(args, from, to < last and to or last))
  end
end

-- Jobs.

local function job_read(id, packed)
  local state, lease, attempt, ran_out, probe, place, told, callback, _, due, updated, ended, acked,
    run_until, filed, created, dispatched, epoch, timeout, owner, max, keyed, outside, node, type,
    reason, to = unpack_struct(JOB, packed)
  return {
    id = id, state = state, lease = lease, attempt = attempt, ran_out = ran_out,
    probe = probe == 1, place = place, told = told, updated = updated, ended = ended, due = due,
    acked = acked, run_until = run_until, filed = filed, created = created,
    dispatched = dispatched, epoch = epoch, timeout = timeout, owner = owner, max = max,
    callback = callback, keyed = keyed == 1, outside = outside, node = node, type = type,
    reason = reason, result = sub(packed, to),
  }
end

-- Until it changes again; an answer and the write after it share the text.
local function job_packed(j)
  local packed = j.packed
  if packed then return packed end
  packed = pack(JOB, j.state, j.lease, j.attempt, j.ran_out, j.probe and 1 or 0, j.place, j.told,
    j.callback, j.timeout > 0 and 1 or 0, j.due, j.updated, j.ended, j.acked, j.run_until, j.filed,
    j.created, j.dispatched, j.epoch, j.timeout, j.owner, j.max, j.keyed and 1 or 0, j.outside,
    j.node, j.type, j.reason) .. j.result
  j.packed = packed
  return packed
end

-- As far as this batch has it: nil when nobody asked for it, false when there is none.
local function job_raw(id)
  local j = kept.jobs[id]
  if j then return j.phase.head .. j.back end
  return U.raw[id]
end

-- What this batch reads and writes in the hash of one bucket: the ids that are asked for, and fields
-- with their values. What is put there later counts.
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

-- One that is asked for twice is read twice.
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

local function job_get(id)
  local j = U.jobs[id]
  if j == nil then
    local packed = id ~= '' and job_raw(id)
    if packed == nil then
      jobs_prefetch({id})
      packed = U.raw[id]
    end
    j = packed and job_read(id, packed) or false
    U.jobs[id], kept.jobs[id] = j, nil
  end
  return j or nil
end

local function job_changed(j)
  U.dirty[j.id] = j
  j.packed = nil
end

-- It is in the list of its bucket from now on.
local function job_listed(id)
  local made = U.made + 1
  U.created[made], U.made = id, made
end

-- A field beside the record: `:s` spec, `:r` a long result, `:h` ended attempts, `:k` its
-- Idempotency-Key, `:a` somebody was answered with it by that. One that this batch is about to write is
-- not in Redis yet.
local function outside_text(j, tail)
  if j.new and j.new[tail] then return j.new[tail] end
  local b, name = bucket_get(bucket_of(j.id)), j.id .. tail
  for i = b.size - 1, 1, -2 do
    if b.row[i] == name then return b.row[i + 1] end
  end
  return call('HGET', KEY .. 'j:' .. bucket_of(j.id), name)
end

-- Nodes. `leases` is the list of job ids that hold a slot, oldest first, each after a space.

local function node_read(id, packed)
  local health, reserved, running, max, epoch, own, admin, known, registered, version =
    unpack_struct(NODE, packed)
  return {
    id = id, health = health, own = own, admin = admin, known = known == 1, max = max,
    reserved = reserved, running = running, epoch = epoch, registered = registered,
    version = version, leases = sub(packed, NODE_BYTES + 1),
  }
end

local function node_packed(n)
  return pack(NODE, n.health, n.reserved, n.running, n.max, n.epoch, n.own, n.admin,
    n.known and 1 or 0, n.registered, n.version) .. n.leases
end

local function node_get(id)
  local n = U.nodes[id]
  if n == nil then
    local packed = U.raw_nodes[id]
    if kept.nodes[id] then packed = columns.node_text(kept.nodes[id]) end
    if packed == nil then packed = call('HGET', KEY .. 'n', id) end
    n = packed and node_read(id, packed) or false
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

local function node_new(id)
  local n = {
    id = id, health = 0, own = 0, admin = 0, known = false, max = 0, reserved = 0, running = 0,
    epoch = 1, registered = 0, version = 0, leases = '',
  }
  U.nodes[id] = n
  node_changed(n)
  return n
end

local function node_counts(n)
  return sub(node_packed(n), 1, COUNTS_BYTES)
end

-- Writing.

-- A bucket lives as long as its jobs are kept after the last of them changed.
local function bucket_keep(bucket, is_new)
  if U.retention <= 0 then return end
  if bucket == U.bucket and not is_new then
    if U.now - U.kept < KEEP_MS and U.now >= U.kept then return end
    U.kept = U.now
  end
  local ms = U.retention + BUCKET_SPARE_MS + KEEP_MS
  for _, kind in ipairs({'j:', 'l:'}) do
    if is_new then
      call('PEXPIRE', KEY .. kind .. bucket, ms)
    else
      call('PEXPIRE', KEY .. kind .. bucket, ms, 'GT')
    end
  end
end

-- How many jobs a bucket has is counted: of the newest one in the state of every batch.
local function bucket_count(bucket, more)
  U.total = U.total + more
  if bucket == U.bucket then
    U.bucket_count = U.bucket_count + more
  else
    call('HINCRBY', KEY .. 'counts', bucket, more)
  end
end

do
local NOTHING = {}

-- The new bucket of all jobs, from the first of them on.
local function bucket_begin(bucket)
  if call('ZADD', KEY .. 'buckets', 0, bucket) == 0 then return false end
  if bucket > U.bucket then
    if U.bucket ~= '' then call('HINCRBY', KEY .. 'counts', U.bucket, U.bucket_count) end
    U.bucket, U.bucket_count, U.kept = bucket, 0, U.now
  end
  return true
end

local function is_sorted(ids)
  for i = 2, #ids do
    if ids[i] < ids[i - 1] then return false end
  end
  return true
end

-- Those that came together and share the first characters of their ids (a quarter of a second) are
-- one member of the list of their bucket. Answers the buckets that are new.
local function write_created()
  local ids, from, new = U.created, 1, {}
  if not is_sorted(ids) then sort(ids) end
  while from <= #ids do
    local window, to = sub(ids[from], 1, WINDOW), #ids
    while sub(ids[to], 1, WINDOW) ~= window do to = to - 1 end
    local bucket = bucket_of(window)
    call('ZADD', KEY .. 'l:' .. bucket, 0, concat(ids, '', from, to))
    if bucket ~= U.bucket and bucket_begin(bucket) then new[bucket] = true end
    bucket_count(bucket, to - from + 1)
    from = to + 1
  end
  U.created, U.made = nil, 0
  return new
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
  local new = U.made > 0 and write_created() or NOTHING
  for bucket, b in pairs(U.buckets) do
    if b.size > 0 then
      call_in_parts('HSET', KEY .. 'j:' .. bucket, b.row, 2, b.size)
      bucket_keep(bucket, new[bucket])
      b.size = 0
    end
  end
end

end

local write_nodes
do
local NOTHING = {}
local set = {} -- names and texts. It outlives the batch, as it would have to grow again

function write_nodes()
  local size, del = columns.write_nodes(set), NOTHING
  if U.touched then
    del = {}
    for id, n in pairs(U.dirty_nodes) do
      if n.known or n.leases ~= '' then
        set[size + 1], set[size + 2] = id, node_packed(n)
        size = size + 2
      else
        del[#del + 1] = id
      end
    end
  end
  if size > 0 then call_in_parts('HSET', KEY .. 'n', set, 2, size) end
  if #del > 0 then call_in_parts('HDEL', KEY .. 'n', del) end
end

end

-- Who keeps a view of the nodes hears which of them changed, and when; a number lets them notice a gap.
-- Channels know no database: the generation tells whose nodes they are.
local function publish_nodes()
  if #U.told == 0 then return end
  U.version = U.version + 1
  call('PUBLISH', KEY .. 'ev',
    U.gen .. ' ' .. U.version .. ' ' .. U.now .. ' ' .. concat(U.told, ' '))
end
