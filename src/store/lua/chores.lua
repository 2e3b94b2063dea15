-- The tidy call every instance makes once a second. In a block, because Lua allows only 200 locals.
local LOOK_JOBS = 256 -- memory use is checked after this many new jobs
local memory_look
do

local audit
do
local AUDIT_MAX = 256 -- leases checked per call

-- This node's recount in progress. A recount of an ended epoch starts over.
local function recount_of(n)
  local r = kept.recount
  if not r or r.node ~= n.id or r.epoch ~= n.epoch or r.runs_from ~= n.runs_from then
    r = {
      node = n.id, epoch = n.epoch, runs_from = n.runs_from, cursor = '0', counted = {},
      reserved = 0, running = 0, apart = 0, wide = {reserved = 0, running = 0, apart = 0},
      sums = {reserved = {}, running = {}},
    }
    kept.recount = r
  end
  return r
end

-- Removes entries of `h:NODE` for jobs without a lease there and repairs wrong ones. Returns how many were wrong: the
-- others are left from a job that was deleted by hand, and show up in the counters.
local function audit_lease(n, r, id, value)
  local j = job_get(id)
  local kind, is_wrong = recount.kind(r, j), false
  if not j or j.lease == NONE or j.node ~= n.id then
    holds_of(n.id)[id] = false
  elseif kind and value ~= stamps.value(j) then
    holds_of(n.id)[id], is_wrong = stamps.value(j), true
  end
  recount.set(r, id, kind, j)
  if j and j.lease ~= NONE then limits.count_lease(j) end
  return is_wrong and 1 or 0
end

-- All leases are counted: repairs the node's counters. Returns how many of its slots and resources were wrong.
local function audit_counters(n, r)
  local wide = r.wide.running + r.wide.apart
  local reserved, running, apart = r.reserved + r.wide.reserved, r.running + r.apart + wide, r.apart
  local repairs = 0
  if reserved ~= n.reserved then repairs = repairs + 1 end
  if running ~= n.running then repairs = repairs + 1 end
  if apart ~= n.apart then repairs = repairs + 1 end
  if wide ~= n.wide then repairs = repairs + 1 end
  if repairs > 0 then
    n.reserved, n.running, n.apart, n.wide = reserved, running, apart, wide
    node_changed(n)
  end
  return repairs, resources.put_right(n, r.sums.reserved, r.sums.running)
end

-- The audit recounts a node from its leases, about `max` at a time. Adds repairs to `repairs`. Returns how many it
-- checked, and whether that was the last part.
local function audit_node(n, max, repairs)
  local r, ids = recount_of(n), {}
  local page = call('HSCAN', KEY .. 'h:' .. n.id, r.cursor, 'COUNT', max)
  local held = page[2]
  for i = 1, #held, 2 do ids[#ids + 1] = held[i] end
  jobs_prefetch(ids)
  for i = 1, #ids do repairs.leases = repairs.leases + audit_lease(n, r, ids[i], held[2 * i]) end
  r.cursor = page[1]
  if r.cursor ~= '0' then return #ids, false end
  kept.recount = nil
  local slots, of_resources = audit_counters(n, r)
  repairs.slots, repairs.resources = repairs.slots + slots, repairs.resources + of_resources
  return #ids, true
end

-- Where to continue in a page: at this node, whose place may have shifted as others left. If it left itself, the whole
-- page is checked again, because a round that skipped one would count too few leases of keys (see limit.lua).
local function place_of(page, node)
  for i = 1, #page, 2 do
    if page[i] == node then return i - 1 end
  end
  return 0
end

-- Checks a part of a page of nodes: the cursor has the page and the next node. A recount in progress continues even if
-- nodes that came or left have moved its node within the page.
function audit(repairs)
  local cursor, next_node = string.match(cursor_get('audit'), '^(%d+) ?(.*)$')
  local page = call('HSCAN', KEY .. 'n', cursor, 'COUNT', 64)
  local left, at = AUDIT_MAX, place_of(page[2], next_node)
  owed.settle()
  while at < #page[2] and left > 0 do
    local id = kept.recount and kept.recount.node or page[2][at + 1]
    local n = node_get(id)
    local looked, is_last = 0, true
    if n then looked, is_last = audit_node(n, left, repairs) else kept.recount = nil end
    left = left - looked
    if not is_last then break end
    if id == page[2][at + 1] then at = at + 2 end
  end
  if at >= #page[2] and page[1] == '0' then U.lease_round = U.lease_round + 1 end -- see limit.lua
  cursor_set('audit', at < #page[2] and cursor .. ' ' .. page[2][at + 1] or page[1])
end
end

-- How near Redis is to its maxmemory. The function may write anyway (allow-oom), so the rules here keep it below. 1:
-- finished jobs are purged early until there is room; FULL: also no new work is accepted. Without a maxmemory, or
-- permission to query it, there is always room.
function memory_look()
  U.unlooked = 0
  local info = redis.pcall('INFO', 'memory')
  local used, max, aside
  if type(info) == 'string' then
    used, max = string.match(info, '\nused_memory:(%d+)'), string.match(info, '\nmaxmemory:(%d+)')
    aside = string.match(info, '\nmem_not_counted_for_evict:(%d+)')
  end
  used, max = tonumber(used or 0) - tonumber(aside or 0), tonumber(max or 0)
  if max == 0 or 8 * used < 7 * max then
    U.full = 0
  elseif 16 * used >= 15 * max then
    U.full = FULL
  elseif U.full ~= FULL then
    U.full = 1
  end
end

-- The span after the one walked to its end; nil: none.
local function next_span(span)
  if span ~= '' and call('EXISTS', KEY .. 'l:' .. span) == 0 then
    call('ZREM', KEY .. 'spans', span)
    if U.span == span then U.span = '' end
  end
  return call('ZRANGEBYLEX', KEY .. 'spans', span == '' and '-' or '(' .. span, '+', 'LIMIT', 0, 1)[1]
end

local MEMBERS = 32 -- of a list, read at once

-- Calls visit() for all jobs, oldest first: each member of the lists after `at` ('': from the start), until it returns
-- true or has seen `left` jobs. Returns where to continue; nil: those were all.
local function lists_walk(at, left, visit)
  while left > 0 do
    local list = KEY .. 'l:' .. sub(at, 1, SPAN)
    local page = at == '' and {} or call('ZRANGEBYLEX', list, '(' .. at, '+', 'LIMIT', 0, MEMBERS)
    for i = 1, #page do
      local ids = {}
      for from = 1, #page[i], JOB_ID do ids[#ids + 1] = sub(page[i], from, from + JOB_ID - 1) end
      if left <= 0 or visit(list, page[i], ids) then return at end
      at, left = ids[1] .. '~', left - #ids
    end
    if #page < MEMBERS then
      at, left = next_span(sub(at, 1, SPAN)), left - 1
      if not at then return nil end
    end
  end
  return at
end

-- The purge deletes finished jobs that are too old or too many, oldest first. It walks the lists of all spans, a part
-- per call, and continues where it stopped, so long-lived jobs and those waiting for a callback do not block the ones
-- after them. Same as store/flush.c.
local purge
do
local LOOK_MAX = 1024 -- jobs checked per call
local PAUSE_MS = 1000

local function is_crowded(jobs_max)
  return U.full > 0 or (jobs_max > 0 and U.total - U.active > jobs_max)
end

local function is_old(ms)
  return U.retention > 0 and U.now - ms > U.retention
end

local function purge_job(id, packed, fields)
  fields[#fields + 1], fields[#fields + 2] = id, id .. ':s'
  if packed then
    local at = records.job[byte(packed)].at
    if byte(packed, at.told) == TOLD_TEXT then fields[#fields + 1] = id .. ':h' end
    if byte(packed, at.outside) == 1 then fields[#fields + 1] = id .. ':r' end
    if byte(packed, at.has_key) == 1 then
      local key = call('HGET', KEY .. 'j:' .. bucket_of(id), id .. ':k')
      if key and keys.get(key) == id then keys.drop(key) end
      fields[#fields + 1], fields[#fields + 2] = id .. ':k', id .. ':a'
    end
  end
  U.jobs[id], U.raw[id], U.total = false, false, U.total - 1
end

local function may_go(packed, jobs_max)
  if not packed then return true end -- it was deleted by hand
  local at = records.job[byte(packed)].at
  return byte(packed, at.place) == AT_NOWHERE and byte(packed, at.callback) ~= CALLBACK.PENDING and
    (is_crowded(jobs_max) or is_old(unpack_struct('<i6', packed, at.updated)))
end

-- Deletes the expired jobs of one list member. Returns how many.
local function purge_member(list, member, ids, got, jobs_max)
  local stay, fields = {}, {}
  for i = 1, #ids do
    if may_go(got[i], jobs_max) then
      purge_job(ids[i], got[i], fields)
    else
      stay[#stay + 1] = ids[i]
    end
  end
  if #fields == 0 then return 0 end
  call_in_parts('HDEL', KEY .. 'j:' .. bucket_of(ids[1]), fields)
  call('ZREM', list, member)
  if #stay > 0 then call('ZADD', list, 0, concat(stay)) end
  return #ids - #stay
end

-- Returns whether the next call should come soon.
function purge(jobs_max)
  local kept_look, at = string.match(cursor_get('purge'), '^(%d+) (%S*)$')
  local look = tonumber(kept_look or 0)
  if look > U.now + U.retention + PAUSE_MS then look = 0 end -- the clock was set back
  if not is_crowded(jobs_max) and (U.retention <= 0 or U.now < look) then return 0 end
  write_jobs() -- the lists must include the jobs of this batch
  local gone, young = 0, nil
  at = lists_walk(at or '', LOOK_MAX, function(list, member, ids)
    local got = records_read(ids, 1, #ids)
    local created = got[1] and unpack_struct('<i6', got[1], records.job[byte(got[1])].at.created)
    if not is_crowded(jobs_max) then
      if U.retention <= 0 then return true end
      if created and not is_old(created) then young = created end
      if young then return true end
    end
    gone = gone + purge_member(list, member, ids, got, jobs_max)
  end)
  look = 0
  if young then at, look = nil, later(young, U.retention + 1) end
  if not at and not young then look = U.now + PAUSE_MS end -- all others are active
  cursor_set('purge', string.format('%.0f', look) .. ' ' .. (at or ''))
  return (gone > 0 or at) and (is_crowded(jobs_max) or (at and gone > 0)) and 1 or 0
end
end

local REWRITE_MAX = 512 -- nodes or jobs checked per call

local function rewrite_nodes(cursor)
  local page = call('HSCAN', KEY .. 'n', cursor, 'COUNT', REWRITE_MAX)
  for i = 1, #page[2], 2 do
    local n = byte(page[2][i + 1]) ~= layout.format and node_get(page[2][i])
    if n then node_changed(n) end
  end
  return page[1]
end

-- Not as a change of the job, which would extend its retention. If this batch has the record, that one counts.
local function rewrite_jobs(ids)
  local set, got = {}, records_read(ids, 1, #ids)
  for i = 1, #ids do
    local id, packed = ids[i], got[i]
    local is_other = packed and byte(packed) ~= layout.format
    if is_other and U.jobs[id] == nil then
      owed.leave(id)
      U.raw[id], kept.jobs[id] = nil, nil
      set[#set + 1], set[#set + 2] = id, layout.job.pack(job_read(id, packed))
    elseif is_other and U.jobs[id] then
      job_changed(U.jobs[id])
    end
  end
  if #set > 0 then call_in_parts('HSET', KEY .. 'j:' .. bucket_of(ids[1]), set, 2) end
end

-- Rewrites records in an old format, a part per call: first nodes, then jobs. After a full pass only one format is
-- left. Returns whether there is more to do.
local function rewrite()
  if formats.oldest == formats.newest or formats.written ~= layout.format then return 0 end
  local target, at, cursor = string.match(cursor_get('rewrite'), '^(%d+) (%S*) (%d+)$')
  if tonumber(target) ~= layout.format then at, cursor = '', '0' end
  if at ~= '' then
    at = lists_walk(at, REWRITE_MAX, function(_, _, ids) rewrite_jobs(ids) end)
  else
    cursor = rewrite_nodes(cursor)
    if cursor == '0' then at = next_span('') end
  end
  if at then
    cursor_set('rewrite', layout.format .. ' ' .. at .. ' ' .. cursor)
    return 1
  end
  cursor_set('rewrite', '0')
  formats.oldest, formats.newest, formats.changed = layout.format, layout.format, true
  return 0
end

-- Once a second everything; while there is much to purge, only the purge, more often.
function verbs.T(op)
  local more, repairs = 0, {slots = 0, leases = 0, lanes = 0, resources = 0, key_leases = 0, key_waiting = 0}
  if op.whole then
    breakers_tidy()
    U.tidied = true -- and nothing is cached beyond this call
    more = rewrite()
    audit(repairs)
    repairs.lanes = lanes.audit()
    repairs.key_leases, repairs.key_waiting = limits.tidy()
  end
  if op.whole or U.full > 0 then memory_look() end
  return {
    ERR.OK, false, false, more, purge(op.jobs_max), U.full, repairs.slots, repairs.leases, repairs.lanes, repairs.resources,
    repairs.key_leases, repairs.key_waiting, -- as enum store_rule
  }
end
end
