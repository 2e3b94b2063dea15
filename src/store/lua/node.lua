-- Nodes and time: NODE_PUT, NODE_DROP, RENEW and DUE, same as in store/ledger.c.
local function tell_changed(id)
  U.told[#U.told + 1] = id
end

do -- Lua allows only 200 locals at a time: keeps local names within this block
-- Facts and the operator's reason are not needed for a reserve, so they have separate hashes.
local function text_set(name, id, text)
  if (call('HGET', KEY .. name, id) or '') == text then return false end
  if text == '' then
    call('HDEL', KEY .. name, id)
  else
    call('HSET', KEY .. name, id, text)
  end
  return true
end

-- What a reserve sees: node_effective() of model/node.c, with a watch that says ready.
local function effective(health, admin)
  if health == HEALTH.NONE or health == HEALTH.OFFLINE or admin == 0 then return health end
  return HEALTH.DRAINING
end

-- Applies the changed fields. A sender may have an old view of the fields it is not changing: fields it leaves out
-- stay, and the operator's setting stored here is kept.
local function take_facts(n, op)
  local admin = op.set_admin and op.admin or n.admin
  local own = op.own ~= HEALTH.NONE and op.own or n.own
  local health = effective(op.health, admin)
  local max = op.max >= 0 and op.max or n.max
  local changed = n.own ~= own or n.health ~= health or n.max ~= max
  n.own, n.health, n.max = own, health, max
  if op.facts and text_set('facts', n.id, op.facts) then changed = true end
  if op.resources and resources.declare(n, op.resources) then changed = true end
  if op.set_admin then
    if n.admin ~= admin then
      n.admin = admin
      changed = true
    end
    if text_set('admin', n.id, op.admin_reason) then changed = true end
  end
  return changed
end

-- Leases that end with the epoch need not expire first: sweeps take them, see orphans_some. For a lost node these are
-- only the unacknowledged ones: the others may still be running there.
local function begin_epoch(n, keeps_runs)
  n.epoch, n.reserved = n.epoch + 1, 0
  resources.begin_epoch(n, keeps_runs)
  if not keeps_runs then
    stamps.close(n)
    n.running, n.runs_from = 0, n.epoch
  end
  if has_leases(n.id) then
    call('RPUSH', KEY .. 'ended', '0 ' .. n.id)
  else
    n.rest = ''
  end
end

local ORPHANS_MAX = 512 -- leases checked per call

-- Handles a part of the leases of nodes that began a new epoch. `ended`: where to continue with each node.
local function orphans_some()
  local left = ORPHANS_MAX
  while left > 0 do
    local first = call('LPOP', KEY .. 'ended')
    if not first then return end
    local cursor, node = string.match(first, '^(%d+) (.*)$')
    owed.settle(node)
    local page, ids = call('HSCAN', KEY .. 'h:' .. node, cursor, 'COUNT', left), {}
    for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
    sort(ids) -- oldest first
    jobs_prefetch(ids)
    for i = 1, #ids do
      local j = job_get(ids[i])
      if j and j.node == node and j.place ~= AT_LAPSED and is_orphaned(j) then job_place(j) end
    end
    if page[1] ~= '0' then call('LPUSH', KEY .. 'ended', page[1] .. ' ' .. node) end
    left = left - 1 - #ids
  end
end

local function put_answer(err, n, created)
  return {err, false, n and node_counts(n) or false, created and 1 or 0, n and n.version or 0,
    n and n.registered or 0}
end

function verbs.M(op)
  if op.resources == PACKED.UNREADABLE then return put_answer(ERR.BAD_FIELD) end
  local n = node_get(op.node)
  local created = false
  if not (n and n.known) then
    if #op.node == 0 or #op.node > LIMIT.NODE_ID then return put_answer(ERR.BAD_FIELD) end
    if not op.facts then return put_answer(ERR.NOT_FOUND) end
    if U.full == FULL then return put_answer(ERR.STORE_FULL) end
    -- Dropped recently and back: its remaining leases still count.
    n = n or node_new(op.node)
    n.known, n.version, n.registered = true, 0, U.now
    created = true
  end
  local is_fresh = created and not has_leases(n.id)
  local old_epoch = op.if_epoch ~= 0 and op.if_epoch ~= n.epoch
  if old_epoch and not op.facts then return put_answer(ERR.STALE, n, created) end
  local changed = take_facts(n, op) or created
  if op.new_epoch and not old_epoch and not is_fresh then
    begin_epoch(n, op.keeps_runs)
    changed = true
  end
  if changed then
    n.version = n.version + 1
    node_changed(n)
    tell_changed(n.id)
  end
  return put_answer(ERR.OK, n, created)
end

function verbs.X(op)
  local n = node_get(op.node)
  if not (n and n.known) then return {ERR.NOT_FOUND, false, false} end
  local counts = node_counts(n)
  n.known, n.health, n.admin = false, 0, 0
  resources.declare(n, '')
  for _, name in ipairs({'facts', 'admin', 'links', 'live'}) do call('HDEL', KEY .. name, n.id) end
  node_changed(n)
  if not has_leases(n.id) then U.nodes[n.id] = false end
  tell_changed(n.id)
  return {ERR.OK, false, counts}
end

-- An expired lease is not revived, and a lease of an older epoch no longer belongs to the node.
local function renew_one(n, j, op)
  if not j or j.lease ~= RUNNING_LEASE or j.node ~= n.id or is_orphaned(j) or j.due <= U.clock then
    return false
  end
  local until_ms = later(U.clock, lease_term(j, op))
  if j.run_until ~= 0 and until_ms > j.run_until then until_ms = j.run_until end
  if until_ms > j.due then j.due = until_ms end
  stamps.extend(j)
  job_place(j)
  return true
end

-- The value of each in `h:NODE`.
local function holds_read(n, ids)
  local values = {}
  owed.settle(n.id)
  for from = 1, #ids, ARGS_MAX do
    local to = from + ARGS_MAX - 1
    local part = call('HMGET', KEY .. 'h:' .. n.id, unpack_list(ids, from, to < #ids and to or #ids))
    for i = 1, #part do values[from + i - 1] = part[i] end
  end
  return values
end

-- All entries of the node that match `fits`.
local function holds_find(n, fits)
  local ids = {}
  owed.settle(n.id)
  local all = call('HGETALL', KEY .. 'h:' .. n.id)
  for i = 1, #all, 2 do
    if fits(all[i], all[i + 1]) then ids[#ids + 1] = all[i] end
  end
  return ids
end

-- By the text of an epoch: do its runs count? Nearly all are of one epoch.
local function epochs_of(n)
  return setmetatable({}, {__index = function(known, text)
    known[text] = #text == 4 and unpack_struct('<I4', text) >= n.runs_from
    return known[text]
  end})
end

-- Restores what the node lists and the store has lost: the run, its placement, or only its ACK.
local function recover(n, id, attempt, op)
  local j = job_get(id)
  if not j or is_waiting(j) then
    take_back(n.id, id, attempt, op.ttl)
  elseif j.lease == RESERVED_LEASE and j.node == n.id and j.attempt == attempt and j.epoch == n.epoch and
    is_alive(j) then
    rules.C({job = j.id, attempt = j.attempt, node = n.id, ttl = op.ttl, f2f_ttl = op.f2f_ttl,
      stop_grace = op.ttl, send = 0})
    U.lost = U.lost + 1
  end
end

-- It has listed its runs, see is_held.
local function note_heard(n)
  if U.now < U.recover_until then call('HSET', KEY .. 'heard', n.id, 1) end
end

local function renew_all(n, op)
  local each = stamps.may_be_over(n)
  if not each then stamps.move(n, op) end
  if not each and n.apart == 0 then return end
  local ids = holds_find(n, function(_, value) return each or value == stamps.APART end)
  jobs_prefetch(ids)
  for i = 1, #ids do renew_one(n, job_get(ids[i]), op) end
end

-- As many of a list as this call may still check one by one (LIMIT.RENEW in all), with their records requested.
local function look_at(op, ids)
  local part, left = {}, LIMIT.RENEW - op.looked
  for i = 1, #ids < left and #ids or left do part[i] = ids[i] end
  op.looked = op.looked + #part
  jobs_prefetch(part)
  return part
end

local YES, NO, LATER = '1', '0', '2' -- is it unknown?

-- Renews individually those of the list that `alone` names. True: the rest is left for LATER.
local function renew_alone(n, op, alone, unknown)
  local ids = {}
  for k = 1, #alone do ids[k] = op.runs[alone[k]] end
  local part = look_at(op, ids)
  for k = 1, #alone do
    local i = alone[k]
    unknown[i] = LATER
    if k <= #part then
      if is_recovering() then recover(n, ids[k], op.attempts[i], op) end
      local j = job_get(ids[k])
      local mine = j and j.attempt == op.attempts[i] and renew_one(n, j, op)
      unknown[i] = mine and NO or YES
    end
  end
  return #part < #alone
end

-- Which of the list the stamp renews, by id, and how many; and which are checked individually.
local function sort_runs(n, op, counts, each, unknown)
  local runs, attempts, read = op.runs, op.attempts, stamps.read
  local values, listed, count, alone = holds_read(n, runs), {}, 0, {}
  local behind, recovers = U.wheel_done < U.wheel_at, is_recovering()
  for i = 1, #runs do
    local id, value = runs[i], values[i]
    unknown[i] = YES
    if value == stamps.APART or (not value and recovers) then
      alone[#alone + 1] = i
    elseif value then
      local attempt, run_until, epoch = read(value)
      if attempt == attempts[i] and counts[epoch] then
        unknown[i] = NO
        if not listed[id] then listed[id], count = i, count + 1 end
        if each or (behind and run_until ~= 0 and run_until <= U.clock) then alone[#alone + 1] = i end
      end
    end
  end
  return listed, count, alone
end

-- Sets apart the runs the stamp renews that are not listed. False: there are more.
local function set_apart(n, op, listed, counts)
  local lacks = holds_find(n, function(id, value)
    return value ~= stamps.APART and not listed[id] and counts[sub(value, 8)]
  end)
  local part = look_at(op, lacks)
  for i = 1, #part do
    local j = job_get(part[i])
    if j and j.lease == RUNNING_LEASE and j.node == n.id then
      stamps.set_apart(n, j, true)
    else
      holds_of(n.id)[part[i]] = false -- deleted by hand; the audit repairs the slot
    end
  end
  return #part == #lacks
end

-- Renews those that it lists and no others. Nearly always they are all that the stamp renews. Of those it renews and
-- that are not listed each is set apart first; should they be more than the others, those are renewed one by one.
-- Answers of each that is listed whether the store does not know it, or LATER; and whether the same must be asked again.
local function renew_listed(n, op)
  local each, counts, unknown = stamps.may_be_over(n), epochs_of(n), {}
  local listed, count, alone = sort_runs(n, op, counts, each, unknown)
  local others = n.running - n.wide - n.apart - count -- runs, not slots
  if not each and others > count then
    for _, i in pairs(listed) do alone[#alone + 1] = i end
  elseif not each and count > 0 then
    if others > 0 and not set_apart(n, op, listed, counts) then return string.rep(YES, #op.runs), 1 end
    stamps.move(n, op)
  end
  local more = renew_alone(n, op, alone, unknown)
  if not more then note_heard(n) end
  return concat(unknown), 0
end

-- Handles what was left for later, or a part of it.
local function renew_left(n, op)
  local alone, unknown = {}, {}
  for i = 1, #op.runs do alone[i] = i end
  local more = renew_alone(n, op, alone, unknown)
  if op.last and not more then note_heard(n) end
  return concat(unknown), 0
end

function verbs.N(op)
  local n = node_get(op.node)
  -- A dropped node: its remaining leases expire on their own.
  if not n or not n.known then return {ERR.NOT_FOUND, false, false, string.rep(YES, #op.runs), 0} end
  local unknown, again = '', 0
  if op.all then
    renew_all(n, op)
    note_heard(n)
  elseif op.left then
    unknown, again = renew_left(n, op)
  else
    unknown, again = renew_listed(n, op)
  end
  return {ERR.OK, false, node_counts(n), unknown, again}
end

function verbs.D(op)
  free_some()
  orphans_some()
  wheel.lapse_waits(lapse_some(op.max))
  write_lapsed()
  local ids = call('ZRANGE', KEY .. 'lapsed', 0, op.max - 1)
  local answer = {ERR.OK, false, false}
  jobs_prefetch(ids)
  for i = 1, #ids do
    local j = job_get(ids[i])
    if j then
      local lease = j.lease ~= NONE and j.lease or j.ran_out
      answer[#answer + 1] = j.id .. char(j.attempt, j.state, lease) .. j.lane .. j.node
    else
      U.lapsed[ids[i]] = false
    end
  end
  return answer
end

end
