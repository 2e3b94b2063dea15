-- The unit of work: what a batch looked at and changed. Records are read once, changed as tables,
-- and written once at the end, so that sixteen jobs cost little more than one. Every verb of the
-- batch sees what those before it did. While Redis 7.0 loads a library there is neither `redis.call`
-- nor `string` nor `unpack`, so they are picked up when a batch comes.
local call, sub, find, pack, unpack_struct, char, unpack_list, concat

local KEY = 'sched:{f}:' -- one hash tag: all keys are in one slot, see docs/redis.md
local FOREVER = 99999999999999 -- as far as Lua writes a whole number without an exponent
local BUCKET = 6 -- the first characters of a job id: 262 s share one hash
local ARGS_MAX = 2000 -- of one redis.call
local BUCKET_SPARE_MS = 3600000 -- a bucket nobody sweeps goes by itself this much after its time

local U -- this batch

local NONE, RESERVED_LEASE, RUNNING_LEASE = 0, 1, 2
local AT_NOWHERE, AT_DUE, AT_LAPSED = 0, 1, 2

local JOB = '<BBBBBBBBBBI4I4i8i8i8i8i8i8i8i8sss'
local NODE = '<BBBBi4i4i4I4i8i8'
local NODE_BYTES = 36
local COUNTS = '<Bi4i4i4I4'

local function begin_library()
  call, sub, find = redis.call, string.sub, string.find
  pack, unpack_struct, char = struct.pack, struct.unpack, string.char
  unpack_list, concat = unpack, table.concat
end

local function later(now, ms)
  local sum = now + ms
  return sum < FOREVER and sum or FOREVER
end

local function bucket_of(id)
  return sub(id, 1, BUCKET)
end

-- Runs one command over a long list of arguments, a part at a time; `width` of them belong together.
local function call_in_parts(command, key, args, width)
  local part = ARGS_MAX - ARGS_MAX % (width or 1)
  for from = 1, #args, part do
    local to = from + part - 1
    call(command, key, unpack_list(args, from, to < #args and to or #args))
  end
end

-- Jobs.

local function job_read(id, packed)
  local state, lease, attempt, max, callback, ran_out, probe, place, keyed, told, epoch, owner, created,
    updated, dispatched, acked, ended, due, timeout, run_until, node, type, reason =
    unpack_struct(JOB, packed)
  return {
    id = id, state = state, lease = lease, attempt = attempt, max = max, callback = callback,
    ran_out = ran_out, probe = probe == 1, place = place, keyed = keyed == 1, told = told,
    epoch = epoch, owner = owner, created = created, updated = updated, dispatched = dispatched, acked = acked,
    ended = ended, due = due, timeout = timeout, run_until = run_until, node = node, type = type,
    reason = reason,
  }
end

-- Until it changes again; an answer and the write after it share the text.
local function job_packed(j)
  local packed = j.packed
  if packed then return packed end
  packed = pack(JOB, j.state, j.lease, j.attempt, j.max, j.callback, j.ran_out, j.probe and 1 or 0,
    j.place, j.keyed and 1 or 0, j.told, j.epoch, j.owner, j.created, j.updated, j.dispatched, j.acked,
    j.ended, j.due, j.timeout, j.run_until, j.node, j.type, j.reason)
  j.packed = packed
  return packed
end

local function job_get(id)
  local j = U.jobs[id]
  if j == nil then
    local packed = id ~= '' and call('HGET', KEY .. 'j:' .. bucket_of(id), id)
    j = packed and job_read(id, packed) or false
    U.jobs[id] = j
  end
  return j or nil
end

-- Reads many at once: one call for each bucket.
local function jobs_prefetch(ids)
  local buckets = {}
  for i = 1, #ids do
    local id = ids[i]
    if id ~= '' and U.jobs[id] == nil then
      local bucket = bucket_of(id)
      local list = buckets[bucket]
      if not list then
        list = {}
        buckets[bucket] = list
      end
      list[#list + 1] = id
      U.jobs[id] = false
    end
  end
  for bucket, list in pairs(buckets) do
    for from = 1, #list, ARGS_MAX do
      local to = from + ARGS_MAX - 1
      local got = call('HMGET', KEY .. 'j:' .. bucket,
        unpack_list(list, from, to < #list and to or #list))
      for i = 1, #got do
        local id = list[from + i - 1]
        if got[i] then U.jobs[id] = job_read(id, got[i]) end
      end
    end
  end
end

local function job_changed(j)
  U.dirty[j.id] = j
  j.packed = nil
end

-- `told`: it has one; most jobs have none until they end.
local function job_history(j)
  if j.told == 0 then return '' end
  if j.history == nil then
    j.history = call('HGET', KEY .. 'j:' .. bucket_of(j.id), j.id .. ':h') or ''
  end
  return j.history
end

-- Where it stands: among what will run out, among what ran out and waits for the sweep, or nowhere.

local function job_due(j)
  U.due[j.id] = j.due
  if j.due <= U.now then U.none_ripe = false end
  if j.place == AT_LAPSED then U.lapsed[j.id] = false end
  j.place = AT_DUE
  U.dirty[j.id] = j
  j.packed = nil
end

local function job_lapsed(j)
  U.lapse_seq = U.lapse_seq + 1
  U.lapsed[j.id] = U.lapse_seq
  if j.place == AT_DUE then U.due[j.id] = false end
  j.place = AT_LAPSED
  U.dirty[j.id] = j
  j.packed = nil
end

local function job_nowhere(j)
  if j.place == AT_DUE then U.due[j.id] = false end
  if j.place == AT_LAPSED then U.lapsed[j.id] = false end
  j.place = AT_NOWHERE
  U.dirty[j.id] = j
  j.packed = nil
end

-- Nodes. `leases` is the list of job ids that hold a slot, oldest first, each after a space.

local function node_read(id, packed)
  local health, own, admin, known, max, reserved, running, epoch, registered, version =
    unpack_struct(NODE, packed)
  return {
    id = id, health = health, own = own, admin = admin, known = known == 1, max = max,
    reserved = reserved, running = running, epoch = epoch, registered = registered,
    version = version, leases = sub(packed, NODE_BYTES + 1),
  }
end

local function node_packed(n)
  return pack(NODE, n.health, n.own, n.admin, n.known and 1 or 0, n.max, n.reserved, n.running,
    n.epoch, n.registered, n.version) .. n.leases
end

local function node_get(id)
  local n = U.nodes[id]
  if n == nil then
    local packed = call('HGET', KEY .. 'n', id)
    n = packed and node_read(id, packed) or false
    U.nodes[id] = n
  end
  return n or nil
end

local function nodes_prefetch(ids)
  local list = {}
  for i = 1, #ids do
    if U.nodes[ids[i]] == nil then
      list[#list + 1] = ids[i]
      U.nodes[ids[i]] = false
    end
  end
  if #list == 0 then return end
  local got = call('HMGET', KEY .. 'n', unpack_list(list))
  for i = 1, #got do
    if got[i] then U.nodes[list[i]] = node_read(list[i], got[i]) end
  end
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
  return pack(COUNTS, n.health, n.max, n.reserved, n.running, n.epoch)
end

-- Writing.

local function write_places(name, places)
  local add, del = {}, {}
  local added, texts = 0, {} -- the score of one batch is often the same, and slow to write
  for id, score in pairs(places) do
    if score then
      local as_text = texts[score]
      if not as_text then
        as_text = score .. ''
        texts[score] = as_text
      end
      add[added + 1], add[added + 2] = as_text, id
      added = added + 2
    else
      del[#del + 1] = id
    end
  end
  if #add > 0 then call_in_parts('ZADD', KEY .. name, add, 2) end
  if #del > 0 then call_in_parts('ZREM', KEY .. name, del) end
end

local function write_due()
  if next(U.due) then
    write_places('due', U.due)
    U.due = {}
  end
end

local function write_lapsed()
  if next(U.lapsed) then
    write_places('lapsed', U.lapsed)
    U.lapsed = {}
  end
end

-- A bucket lives as long as its jobs are kept after the last of them changed.
local function bucket_keep(bucket, is_new)
  if U.retention <= 0 or (bucket == U.bucket and not is_new) then return end
  local ms = U.retention + BUCKET_SPARE_MS
  for _, kind in ipairs({'j:', 'l:'}) do
    if is_new then
      call('PEXPIRE', KEY .. kind .. bucket, ms)
    else
      call('PEXPIRE', KEY .. kind .. bucket, ms, 'GT')
    end
  end
end

local function write_jobs()
  local rows, index = {}, {}
  for id, j in pairs(U.dirty) do
    local bucket = bucket_of(id)
    local row = rows[bucket]
    if not row then
      row = {}
      rows[bucket] = row
    end
    local at = #row
    row[at + 1], row[at + 2] = id, job_packed(j)
    at = at + 2
    if j.new_spec then
      row[at + 1], row[at + 2] = id .. ':s', j.new_spec
      at = at + 2
      local list = index[bucket] or {}
      index[bucket] = list
      list[#list + 1] = 0
      list[#list + 1] = id
    end
    if j.new_history then
      row[at + 1], row[at + 2] = id .. ':h', j.new_history
      at = at + 2
    end
    if j.new_result then
      row[at + 1], row[at + 2] = id .. ':r', j.new_result
      at = at + 2
    end
    if j.new_idem then row[at + 1], row[at + 2] = id .. ':k', j.new_idem end
  end
  for bucket, row in pairs(rows) do
    call_in_parts('HSET', KEY .. 'j:' .. bucket, row, 2)
    local is_new = false
    if index[bucket] then
      call_in_parts('ZADD', KEY .. 'l:' .. bucket, index[bucket], 2)
      if bucket ~= U.bucket then
        is_new = call('ZADD', KEY .. 'buckets', 0, bucket) == 1
      end
    end
    bucket_keep(bucket, is_new)
    if is_new and bucket > U.bucket then U.bucket = bucket end
  end
end

local function write_nodes()
  local set, del = {}, {}
  for id, n in pairs(U.dirty_nodes) do
    if n.known or n.leases ~= '' then
      set[#set + 1] = id
      set[#set + 1] = node_packed(n)
    else
      del[#del + 1] = id
    end
  end
  if #set > 0 then call_in_parts('HSET', KEY .. 'n', set, 2) end
  if #del > 0 then call_in_parts('HDEL', KEY .. 'n', del) end
end

-- Who keeps a view of the nodes hears which of them changed, and when; a number lets them notice a gap.
-- Channels know no database: the generation tells whose nodes they are.
local function publish_nodes()
  if #U.told == 0 then return end
  U.version = U.version + 1
  call('PUBLISH', KEY .. 'ev',
    U.gen .. ' ' .. U.version .. ' ' .. U.now .. ' ' .. concat(U.told, ' '))
end
