-- Leases, as model/lease.c has them: the only thing that moves a node's counters.
local WHY = {OK = 0, NOT_READY = 2, NO_CAPACITY = 3, FULL = 4, BREAKER = 5} -- enum lease_reason
local HEALTH = {NONE = 0, READY = 2, DRAINING = 4, OFFLINE = 5} -- enum node_health
local CLEAR_MAX = 16 -- run-out leases one reserve clears

-- The node of a job that holds a slot. Should somebody have deleted it here, there is a new one for this
-- call, which lists nothing and is not written.
local function holder_of(j)
  return node_get(j.node) or node_new(j.node)
end

local function is_listed(n, j)
  return find(n.leases, j.id, 1, true) ~= nil
end

-- Its lease is of an epoch that is over, or of a node that was deleted here: it counts nowhere and is due
-- for the sweep.
local function is_orphaned(j)
  if j.lease == NONE then return false end
  local n = holder_of(j)
  return j.epoch ~= n.epoch or not is_listed(n, j)
end

-- Puts it where its state and lease say it belongs.
local function job_place(j)
  if j.lease ~= NONE then
    if is_orphaned(j) then job_lapsed(j) else job_due(j) end
  elseif is_waiting(j) then
    job_due(j)
  elseif is_over(j) then
    job_nowhere(j)
  else
    job_lapsed(j)
  end
end

-- A store that was emptied while nodes were at work (F21). For a while, runs that nodes list are taken
-- back as what they are, and a node gets nothing new before it has listed its runs, or had the time.
local RECOVER_MS, RECOVER_NODE_MS = 60000, 15000

local function recover_begin()
  U.recover_until = U.now + RECOVER_MS
  call('DEL', KEY .. 'heard')
end

-- May nodes hold what this store does not know? It was emptied, or whoever calls had another master
-- a while ago: what that one acknowledged last may never have come here (F13, F15).
local function is_recovering()
  return U.moved or U.now < U.recover_until
end

local function is_held(n)
  return U.now < U.recover_until and U.now - n.registered < RECOVER_NODE_MS and
    call('HEXISTS', KEY .. 'heard', n.id) == 0
end

-- Why this node does not take it; OK when it does. `spare` slots are kept for others.
local function lease_check(n, spare)
  if n.health ~= HEALTH.READY or is_held(n) then return WHY.NOT_READY end
  if n.max <= 0 then return WHY.NO_CAPACITY end
  if n.running + n.reserved >= n.max - spare then return WHY.FULL end
  return WHY.OK
end

local function lease_take(n, j, ttl)
  n.reserved = n.reserved + 1
  n.leases = n.leases .. ' ' .. j.id
  node_changed(n)
  j.lease, j.epoch, j.due = RESERVED_LEASE, n.epoch, later(U.now, ttl)
end

-- Ends it whatever it is; one that counts nowhere moves no counter.
local function lease_end(n, j)
  if not is_orphaned(j) then
    if j.lease == RESERVED_LEASE then n.reserved = n.reserved - 1 end
    if j.lease == RUNNING_LEASE then n.running = n.running - 1 end
  end
  j.lease = NONE
end

local function lease_unbind(n, j)
  local from, to = find(n.leases, ' ' .. j.id, 1, true)
  if from then n.leases = sub(n.leases, 1, from - 1) .. sub(n.leases, to + 1) end
  node_changed(n)
  if not n.known and n.leases == '' then U.nodes[n.id] = false end
end

-- How long it lasts after each renewal: that of a face-to-face job is shorter.
local function lease_term(j, op)
  return j.type == 'f2f' and op.f2f_ttl or op.ttl
end

local probe_release -- breaker.lua

-- It ran out: a lease gives its slot back, and whatever it is now waits for the sweep.
local function lapse(j)
  if j.lease ~= NONE then
    local n = holder_of(j)
    j.ran_out = j.lease
    probe_release(j)
    lease_end(n, j)
    lease_unbind(n, j)
  end
  job_lapsed(j)
end

local function lapse_one(j)
  if (j.place == AT_WHEEL or j.place == AT_DUE) and j.due <= U.now then lapse(j) end
end

-- Up to `max` that ran out. `ripe`: nothing is due before that, so that most batches do not ask.
local function lapse_some(max)
  if U.now < U.ripe then return end
  write_due()
  local ids = call('ZRANGEBYSCORE', KEY .. 'due', '-inf', U.now, 'LIMIT', 0, max)
  jobs_prefetch(ids)
  for i = 1, #ids do
    local j = job_get(ids[i])
    if j then
      lapse(j)
    else
      U.due[ids[i]] = false -- its record is gone; the audit looks after the slot
    end
  end
  if #ids == max then return end
  write_due()
  local first = call('ZRANGE', KEY .. 'due', 0, 0, 'WITHSCORES')
  U.ripe = first[2] and tonumber(first[2]) or FOREVER
end

local AWAY_GRACE_MS = 15000
local pass_time
do
local AWAY_MS, BACK_MS = 5000, 1000

-- Nobody called, so nobody could renew: leases that had not run out by then get a grace.
local function prolong(last_now)
  local ids = wheel.active_ids()
  for i = 1, #ids do
    local j = job_get(ids[i])
    if j and j.lease == RUNNING_LEASE and j.due > last_now then
      local until_ms = later(j.due > U.now and j.due or U.now, AWAY_GRACE_MS)
      if until_ms > j.due then j.due = until_ms end
      if j.run_until ~= 0 and j.run_until < j.due then j.run_until = j.due end
      job_place(j)
    end
  end
end

-- The clock was set back: every term keeps the length it has left.
local function shift(back_ms)
  local ids = wheel.active_ids()
  for i = 1, #ids do
    local j = job_get(ids[i])
    if j and (j.place == AT_DUE or j.place == AT_WHEEL or is_orphaned(j)) then
      if j.lease == NONE or j.due ~= FOREVER then j.due = j.due - back_ms end
      if j.run_until ~= 0 then j.run_until = j.run_until - back_ms end
      job_place(j)
    end
  end
end

function pass_time(last_now)
  if not last_now then return end
  local away = U.now - last_now
  U.touched = U.touched or away > AWAY_MS or away < -BACK_MS
  if away > AWAY_MS then
    prolong(last_now)
  elseif away < -BACK_MS then
    shift(-away)
  end
end

end
