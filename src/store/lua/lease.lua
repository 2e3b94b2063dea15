-- Leases, as in model/lease.c: the only thing that moves a node's counters.
--
-- Terms (`due`, `run_until`, where a job is on the wheel) are on the steady clock: `U.clock`, which is Redis' time less
-- an offset. The reader of an answer converts them back to Redis' time.

-- The node of a job that holds a slot. If it was deleted by hand, a temporary empty one is used for this call and not
-- written.
local function holder_of(j)
  return node_get(j.node) or node_new(j.node)
end

-- Its lease is of an ended epoch, or of a node deleted by hand: it counts nowhere and is due for the sweep. A run's
-- lease may be of an earlier epoch whose runs still count.
local function is_orphaned(j)
  if j.lease == NONE then return false end
  local n = holder_of(j)
  if j.lease == RUNNING_LEASE then return j.epoch < n.runs_from end
  return j.epoch ~= n.epoch
end

-- Puts it where its state and lease require.
function job_place(j)
  if j.lease ~= NONE then
    if is_orphaned(j) then
      job_lapsed(j)
      j.apart = true -- its end is fixed now
    else
      job_due(j)
      if j.lease == RUNNING_LEASE then stamps.cover(j) end
    end
  elseif is_waiting(j) then
    job_due(j)
  elseif is_over(j) then
    job_nowhere(j)
  else
    job_lapsed(j)
  end
end

-- Recovery after the store was emptied while nodes were working: for a while, runs that nodes list are restored, and a
-- node gets no new job before it has listed its runs or had time to.
local recover_begin, is_recovering, is_held
do -- Lua allows only 200 locals
local RECOVER_MS, RECOVER_NODE_MS = 60000, 15000

function recover_begin()
  U.recover_until = U.now + RECOVER_MS
  call('DEL', KEY .. 'heard')
end

-- May nodes hold jobs this store does not know? It was emptied, or the caller had another master recently, whose last
-- acknowledged writes may never have arrived here.
function is_recovering()
  return U.moved or U.now < U.recover_until
end

function is_held(n)
  return U.now < U.recover_until and U.now - n.registered < RECOVER_NODE_MS and
    call('HEXISTS', KEY .. 'heard', n.id) == 0
end
end

-- Its number of free slots; negative if it takes no jobs.
local function lease_room(n)
  if n.health ~= HEALTH.READY or n.max <= 0 then return -FOREVER end
  return n.max - n.running - n.reserved
end

-- Why this node does not take a job that needs this many slots; OK if it does. `spare` slots are kept for others.
local function lease_check(n, spare, slots)
  if n.health ~= HEALTH.READY or is_held(n) then return WHY.NOT_READY end
  if n.max <= 0 then return WHY.NO_CAPACITY end
  return lease_room(n) >= spare + slots and WHY.OK or WHY.FULL
end

-- A face-to-face job, in any namespace.
function stamps.is_f2f(j)
  return j.type == 'f2f' or sub(j.type, -4) == '/f2f'
end

-- A running lease that has not expired by `grace_from` lasts until `grace_until` (`grace_f2f` for a face-to-face job),
-- but not beyond its time-out if that is after `grace_min`. Leases are not walked: the grace is applied when one is
-- looked at.
function stamps.grace(j)
  local due = stamps.is_f2f(j) and U.grace_f2f or U.grace_until
  if j.lease ~= RUNNING_LEASE or j.due >= due or j.due <= U.grace_from then return end
  if j.run_until ~= 0 and due > j.run_until then
    due = j.run_until > U.grace_min and j.run_until or U.grace_min
  end
  if due > j.due then j.due, j.packed = due, nil end
end

-- A grace that begins during another one also extends what that one kept.
local function grace_begin(ms, f2f_ms)
  local clock = U.clock
  if clock >= U.grace_until and clock >= U.grace_f2f then U.grace_from = clock end
  U.grace_min = clock + AWAY_GRACE_MS
  if clock + ms > U.grace_until then U.grace_until = clock + ms end
  if clock + f2f_ms > U.grace_f2f then U.grace_f2f = clock + f2f_ms end
  columns.forget()
end

-- A heartbeat renews its node's runs by a stamp on the node, not one by one, so its cost does not grow with their
-- number. A run lasts until `task_until` (`f2f_until` for a face-to-face job) unless its own term, `due`, ends later,
-- and never beyond its time-out. As with a grace, runs are not walked: the stamp is applied and written when a run is
-- looked at.
--
-- A run is `apart`, and renewed individually, when its own term ends before the stamp (it began later with a shorter
-- term, or a heartbeat did not list it), or when it is about to end. So runs that are not apart are on the wheel, and
-- unless the wheel is behind none of them has expired. A node's `apart` is the number of such runs.
do
-- From which epoch on runs counted next, and the stamp.
local ERA, ERA_BYTES, ERAS_MAX = '<I4i6i6', 16, 8

-- How long the stamp makes it last; for a run of an ended epoch, the stamp at that epoch's end, see stamps.close.
local function stamp_of(n, j)
  local task_until, f2f_until, runs_from, at = n.task_until, n.f2f_until, n.runs_from, 1
  if j.epoch < runs_from then
    task_until, f2f_until, runs_from = 0, 0, 0
    while j.epoch >= runs_from and at < #n.rest do
      runs_from, task_until, f2f_until, at = unpack_struct(ERA, n.rest, at)
    end
  end
  local until_ms = stamps.is_f2f(j) and f2f_until or task_until
  if j.run_until ~= 0 and until_ms > j.run_until then until_ms = j.run_until end
  return until_ms
end

-- Its current term.
function stamps.extend(j)
  stamps.grace(j)
  local n = not j.apart and node_get(j.node)
  local until_ms = n and stamp_of(n, j) or 0
  if until_ms <= j.due then return end
  j.due, j.packed = until_ms, nil
  stamps.grace(j)
end

-- Its value in `h:NODE`: attempt, time-out and, last, the epoch.
function stamps.value(j)
  if j.lease ~= RUNNING_LEASE or j.apart then return stamps.APART end
  return pack('<Bi6', j.attempt, j.run_until) .. stamps.epoch(j.epoch)
end

function stamps.epoch(epoch)
  return pack('<I4', epoch)
end

-- Decodes a value: the attempt, its time-out, and the text of its epoch.
function stamps.read(value)
  return byte(value), unpack_struct('<i6', value, 2), sub(value, 8)
end

function stamps.set_apart(n, j, apart)
  if j.apart == apart then return end
  j.apart, n.apart = apart, n.apart + (apart and 1 or -1)
  holds_of(n.id)[j.id] = stamps.value(j)
  job_changed(j)
  node_changed(n)
end

-- The earliest end of a stamp that would set it apart: see stamp_of.
function stamps.reach(j)
  return j.due == j.run_until and FOREVER or j.due
end

-- Its place and its end are known.
function stamps.cover(j)
  local n = holder_of(j)
  stamps.set_apart(n, j, j.place ~= AT_WHEEL or j.due < stamp_of(n, j))
end

-- May some of the node's runs that are not apart have expired? Only if the wheel is behind and they were not renewed
-- for a while. Then runs are renewed one by one.
function stamps.may_be_over(n)
  return U.wheel_done < U.wheel_at and (n.task_until <= U.clock or n.f2f_until <= U.clock)
end

-- Renews all runs that are not apart.
function stamps.move(n, op)
  local task_until, f2f_until = later(U.clock, op.ttl), later(U.clock, op.f2f_ttl)
  if task_until > n.task_until then n.task_until = task_until end
  if f2f_until > n.f2f_until then n.f2f_until = f2f_until end
  node_changed(n)
end

-- Redis stores a hash of few short texts as a list and scans it for every access. A node once written with an empty era
-- has so long a record that Redis converts `n` to a real hash table and keeps it so, even after the record is short
-- again. After a restart, or when the hash was emptied, Redis begins with a list again.
function stamps.lengthen(id, packed)
  call('HSET', KEY .. 'n', id, packed .. pack(ERA, 0, 0, 0))
  kept.is_table = true
end

-- The epoch of its runs has ended, see begin_epoch: they keep their term, and a sweep checks each. Some may be left of
-- earlier epochs.
function stamps.close(n)
  local eras = n.rest
  if #eras >= ERAS_MAX * ERA_BYTES then eras = sub(eras, ERA_BYTES + 1) end
  n.rest = eras .. pack(ERA, n.epoch, n.task_until, n.f2f_until)
  n.apart, n.wide, n.task_until, n.f2f_until = 0, 0, 0, 0
end
end

local function lease_take(n, j, ttl)
  n.reserved = n.reserved + demands.slots(j)
  resources.take(n, j)
  limits.begin(j)
  holds_of(n.id)[j.id] = stamps.APART
  node_changed(n)
  j.lease, j.epoch, j.due = RESERVED_LEASE, n.epoch, later(U.clock, ttl)
end

-- It was acknowledged and its term is set. The caller places it.
function stamps.run(n, j)
  local slots = demands.slots(j)
  n.reserved, n.running, n.apart, n.wide = n.reserved - slots, n.running + slots, n.apart + 1, n.wide + slots - 1
  resources.run(n, j)
  j.lease, j.apart = RUNNING_LEASE, true
  holds_of(n.id)[j.id] = stamps.APART
  stamps.grace(j)
  node_changed(n)
end

-- Ends any lease; one that counts nowhere moves no counter of its node, but its keys are released only now.
local function lease_end(n, j)
  if not is_orphaned(j) then
    local slots = demands.slots(j)
    if j.lease == RESERVED_LEASE then n.reserved = math.max(0, n.reserved - slots) end
    if j.lease == RUNNING_LEASE then n.running, n.wide = math.max(0, n.running - slots), math.max(0, n.wide - slots + 1) end
    if j.lease == RUNNING_LEASE and j.apart then n.apart = math.max(0, n.apart - 1) end
    resources.give(n, j)
  end
  limits.finish(j)
  j.lease, j.apart = NONE, false
end

local function lease_unbind(n, j)
  holds_of(n.id)[j.id] = false
  node_changed(n)
  if not n.known and not has_leases(n.id) then U.nodes[n.id] = false end
end

-- Its term after each renewal, which is shorter for a face-to-face job.
local function lease_term(j, op)
  return stamps.is_f2f(j) and op.f2f_ttl or op.ttl
end

local probe_release -- breaker.lua
local is_silent, free_some -- instance.lua

-- It expired: a lease frees its slot, and the job waits for the sweep.
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
  if is_orphaned(j) then
    if j.place ~= AT_LAPSED then job_place(j) end
  elseif (j.place == AT_WHEEL or j.place == AT_DUE) and j.due <= U.clock then lapse(j) end
end

local lapse_some
do
local LOOK_MAX = 256 -- in addition to those that may lapse: extended ones to check

-- Lapses up to `max` expired entries of `due` with scores in this range. Those with a longer term by now are moved to
-- its end. Returns how many more may be handled, and whether those were all.
local function lapse_between(low, high, max)
  local looks = max + LOOK_MAX
  while max > 0 and looks > 0 do
    write_due()
    local asked = max < looks and max or looks
    local ids = call('ZRANGEBYSCORE', KEY .. 'due', low, high, 'LIMIT', 0, asked)
    jobs_prefetch(ids)
    for i = 1, #ids do
      local j = job_get(ids[i])
      if not j then
        U.due[ids[i]] = false -- its record is gone; the audit repairs the slot
      elseif j.due > U.clock or is_orphaned(j) then
        job_place(j)
      else
        lapse(j)
        max = max - 1
      end
    end
    looks = looks - #ids
    if #ids < asked then return max, true end
  end
  return max, false
end

-- Lapses up to `max` expired leases. `ripe`: none is due before that, so most batches need no query. Returns how many
-- more may be handled.
function lapse_some(max)
  if U.clock < U.ripe then return max end
  local left, are_all = lapse_between('-inf', U.clock, max)
  if are_all then
    write_due()
    local first = call('ZRANGEBYSCORE', KEY .. 'due', '-inf', wheel.WAITS - 1, 'WITHSCORES', 'LIMIT', 0, 1)
    U.ripe = first[2] and tonumber(first[2]) or FOREVER
  end
  return left
end

-- Lapses up to `max` waiting jobs whose time is over.
function wheel.lapse_waits(max)
  lapse_between(wheel.WAITS, wheel.WAITS + U.clock, max)
end
end

-- No calls came for a while: reservations made before may never have been answered. Pauses are numbered, because a
-- clock that was set back repeats the same times.
local function note_pause()
  U.pauses = U.pauses + 1
end

local function pause_mark()
  return U.pauses % 256
end

-- A pause of all callers, or a step of the clock, does not count as time: the offset of `now` from the clock grows by
-- it, and every term keeps its remaining length. Runs that could not be renewed meanwhile get a grace.
local function pass_time()
  local away = U.last and U.now - U.last or 0
  if away > AWAY_MS or away < -BACK_MS then
    limits.note_move()
    U.offset_since, U.offset = U.now, U.offset + away
  end
  U.clock = U.now - U.offset
  if away > AWAY_MS then
    grace_begin(AWAY_GRACE_MS, AWAY_GRACE_MS)
    note_pause()
  elseif away < -BACK_MS then
    instances.move(away)
  end
end
