-- Nodes and time: NODE_PUT, NODE_DROP, RENEW and DUE, as store/ledger_node.c and ledger_due.c have them.
local function tell_changed(id)
  U.told[#U.told + 1] = id
end

do -- Lua bears 200 locals at a time: names that are used here alone end here
-- Facts and the operator's reason are texts nobody needs for a reserve: hashes of their own.
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

-- Takes over what is new in it. Who changes one thing may have an old view of the others: what it
-- leaves out stays, and the operator's word is the one kept here.
local function take_facts(n, op)
  local admin = op.set_admin and op.admin or n.admin
  local own = op.own ~= HEALTH.NONE and op.own or n.own
  local health = effective(op.health, admin)
  local max = op.max >= 0 and op.max or n.max
  local changed = n.own ~= own or n.health ~= health or n.max ~= max
  n.own, n.health, n.max = own, health, max
  if op.facts and text_set('facts', n.id, op.facts) then changed = true end
  if op.set_admin then
    if n.admin ~= admin then
      n.admin = admin
      changed = true
    end
    if text_set('admin', n.id, op.admin_reason) then changed = true end
  end
  return changed
end

-- What ends with the epoch need not wait for its lease to run out: sweeps take it, see orphans_some. Of a node
-- that is lost that is only what it never acknowledged: the rest may still run there.
local function begin_epoch(n, keeps_runs)
  n.epoch, n.reserved = n.epoch + 1, 0
  if not keeps_runs then n.running, n.runs_from = 0, n.epoch end
  if has_leases(n.id) then call('RPUSH', KEY .. 'ended', '0 ' .. n.id) end
end

local ORPHANS_MAX = 512 -- leases one call looks at

-- A part of the leases of nodes that began a new epoch. `ended`: where to go on with each of them.
local function orphans_some()
  local left = ORPHANS_MAX
  while left > 0 do
    local first = call('LPOP', KEY .. 'ended')
    if not first then return end
    local cursor, node = string.match(first, '^(%d+) (.*)$')
    write_holds()
    local page = call('SSCAN', KEY .. 'h:' .. node, cursor, 'COUNT', left)
    sort(page[2]) -- oldest first
    jobs_prefetch(page[2])
    for i = 1, #page[2] do
      local j = job_get(page[2][i])
      if j and j.node == node and j.place ~= AT_LAPSED and is_orphaned(j) then job_lapsed(j) end
    end
    if page[1] ~= '0' then call('LPUSH', KEY .. 'ended', page[1] .. ' ' .. node) end
    left = left - 1 - #page[2]
  end
end

local function put_answer(err, n, created)
  return {err, false, n and node_counts(n) or false, created and 1 or 0, n and n.version or 0,
    n and n.registered or 0}
end

function verbs.M(op)
  local n = node_get(op.node)
  local created = false
  if not (n and n.known) then
    if #op.node == 0 or #op.node > LIMIT.NODE_ID then return put_answer(ERR.BAD_FIELD) end
    if not op.facts then return put_answer(ERR.NOT_FOUND) end
    if U.full == FULL then return put_answer(ERR.STORE_FULL) end
    -- Dropped a moment ago and back: leases it still has go on counting.
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
  for _, name in ipairs({'facts', 'admin', 'links', 'live'}) do call('HDEL', KEY .. name, n.id) end
  node_changed(n)
  if not has_leases(n.id) then U.nodes[n.id] = false end
  tell_changed(n.id)
  return {ERR.OK, false, counts}
end

-- A heartbeat of its own node. Over is over: what ran out is not revived, what belongs to an older
-- epoch is not the node's any more.
local function renew_one(n, j, op)
  if not j or j.lease == NONE or j.node ~= n.id or is_orphaned(j) or j.due <= U.clock then
    return false
  end
  if j.lease ~= RUNNING_LEASE then return false end
  local until_ms = later(U.clock, lease_term(j, op))
  if j.run_until ~= 0 and until_ms > j.run_until then until_ms = j.run_until end
  if until_ms > j.due then j.due = until_ms end
  job_place(j)
  return true
end

-- What it lists and the store has lost: the run, or only that it was acknowledged.
local function recover(n, op)
  for i = 1, #op.runs do
    local j = job_get(op.runs[i])
    if not j then
      take_back(n.id, op.runs[i], op.attempts[i], op.ttl)
    elseif j.lease == RESERVED_LEASE and j.node == n.id and j.attempt == op.attempts[i] and
      j.epoch == n.epoch and is_alive(j) then
      verbs.C({job = j.id, attempt = j.attempt, node = n.id, ttl = op.ttl, f2f_ttl = op.f2f_ttl,
        stop_grace = op.ttl, send = 0})
      U.lost = U.lost + 1
    end
  end
  if U.now < U.recover_until then call('HSET', KEY .. 'heard', n.id, 1) end
end

function verbs.N(op)
  local n = node_get(op.node)
  if n and not n.known then n = nil end -- dropped: what it still has runs out by itself
  if n and is_recovering() then recover(n, op) end
  local unknown = {}
  for i = 1, #op.runs do
    local j = job_get(op.runs[i])
    local mine = n and j and j.attempt == op.attempts[i] and renew_one(n, j, op)
    unknown[i] = mine and '0' or '1'
  end
  if not n then return {ERR.NOT_FOUND, false, false, concat(unknown)} end
  if op.all then
    write_holds()
    local ids = call('SMEMBERS', KEY .. 'h:' .. n.id)
    jobs_prefetch(ids)
    for i = 1, #ids do renew_one(n, job_get(ids[i]), op) end
  end
  return {ERR.OK, false, node_counts(n), concat(unknown)}
end

function verbs.D(op)
  free_some()
  orphans_some()
  lapse_some(op.max)
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
