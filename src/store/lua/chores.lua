-- What every instance does once a second: it tidies up. A block, because Lua has room for 200 locals.
local LOOK_JOBS = 256 -- so many new ones, and the memory is looked at
local memory_look
do

local audit
do
local AUDIT_MAX = 256 -- leases one call looks at

-- The recount of this node that is under way. One of an epoch that is over begins anew.
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

-- What `h:NODE` says of a job that has no lease there is taken out, what it says wrongly is put right. Answers how many said
-- something wrong: the others were left by one that somebody deleted, and the counters tell.
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

-- All are counted: the counters of the node are put right. Answers how many of its slots were wrong, and of its resources.
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

-- The auditor recounts a node from its leases; a part of them, about `max`. Adds what it put right to `repairs`. Answers at how
-- many it looked, and whether that was the last part.
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

-- Where in a page it goes on: at this node, which others that went may have moved. If it went itself all are looked at again,
-- because a round that left one out would count too few leases of keys (see limit.lua).
local function place_of(page, node)
  for i = 1, #page, 2 do
    if page[i] == node then return i - 1 end
  end
  return 0
end

-- A part of a page of nodes: the cursor tells the page, and the node that is next. A recount that is under way goes on, though
-- nodes that came or went may have moved its node to another place of the page.
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

-- How near Redis is to its maxmemory. The function may write all the same (allow-oom), so it is the rules
-- here that keep it below. 1: finished jobs go before their time, until there is room; FULL: and no new
-- work comes in. Without a maxmemory, or the right to ask, there is always room.
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

-- The span behind the one that was walked to its end; nil: there is none.
local function next_span(span)
  if span ~= '' and call('EXISTS', KEY .. 'l:' .. span) == 0 then
    call('ZREM', KEY .. 'spans', span)
    if U.span == span then U.span = '' end
  end
  return call('ZRANGEBYLEX', KEY .. 'spans', span == '' and '-' or '(' .. span, '+', 'LIMIT', 0, 1)[1]
end

local MEMBERS = 32 -- of a list, that are read at once

-- Shows visit() all jobs, the oldest first: each member of the lists behind `at` ('': from the start),
-- until it answers true or saw `left` jobs. Answers where to go on; nil: those were all.
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

-- The purge: finished jobs go that are too old or too many, the oldest first. It walks the lists of all
-- spans and goes on where it stopped, a part in each call, so that neither jobs that live long nor those that
-- wait for a callback are in the way of those behind them. As store/flush.c.
local purge
do
local LOOK_MAX = 1024 -- jobs one call looks at
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
  if not packed then return true end -- somebody deleted it here
  local at = records.job[byte(packed)].at
  return byte(packed, at.place) == AT_NOWHERE and byte(packed, at.callback) ~= CALLBACK.PENDING and
    (is_crowded(jobs_max) or is_old(unpack_struct('<i6', packed, at.updated)))
end

-- Of the jobs of one member of a list those go that must; the others stay. Answers how many went.
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

-- Answers whether the next call should come soon.
function purge(jobs_max)
  local kept_look, at = string.match(cursor_get('purge'), '^(%d+) (%S*)$')
  local look = tonumber(kept_look or 0)
  if look > U.now + U.retention + PAUSE_MS then look = 0 end -- the clock was set back
  if not is_crowded(jobs_max) and (U.retention <= 0 or U.now < look) then return 0 end
  write_jobs() -- what this batch made is in the lists, too
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

local REWRITE_MAX = 512 -- nodes or jobs one call looks at

local function rewrite_nodes(cursor)
  local page = call('HSCAN', KEY .. 'n', cursor, 'COUNT', REWRITE_MAX)
  for i = 1, #page[2], 2 do
    local n = byte(page[2][i + 1]) ~= layout.format and node_get(page[2][i])
    if n then node_changed(n) end
  end
  return page[1]
end

-- Not as a change of the job, which would keep it longer. Of one that this batch has, its own is right.
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

-- Records that have another format than is written are written again, a part in each call: first the
-- nodes, then the jobs. When all were looked at, one format is left. Answers whether there is more to do.
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

-- Once a second the whole of it; while there is much to purge, that alone, more often.
function verbs.T(op)
  local more, repairs = 0, {slots = 0, leases = 0, lanes = 0, resources = 0, key_leases = 0, key_waiting = 0}
  if op.whole then
    breakers_tidy()
    U.tidied = true -- and nothing is kept longer than that
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
