-- Instances: each has a unique name (new with every start) and a number, which is part of its jobs' ids. It keeps both
-- as long as it calls; the number of a silent instance is given to another, and if it returns after that it gets a new
-- one.
do -- Lua allows only 200 locals

local SILENT_MS = 3000

-- Time of its last call, its number, the oldest format it reads, the newest it can write; its version follows. This is
-- the same in every format, so releases that cannot share records can read it.
local function instance_read(text)
  local last, number, oldest, newest = string.match(text, '^(%-?%d+) (%d+) (%d+) (%d+) ')
  return tonumber(last), tonumber(number), tonumber(oldest), tonumber(newest)
end

-- Are there other live instances? Also returns the numbers in use and the range of formats the others could agree on;
-- forgets instances that vanished.
function instances.others()
  local all = call('HGETALL', KEY .. 'instances')
  local live, taken, low, high = false, {}, 0, FOREVER
  for i = 1, #all, 2 do
    local last, number, oldest, newest = instance_read(all[i + 1])
    if all[i] ~= U.instance and (not last or U.now - last > INSTANCE_MS) then
      call('HDEL', KEY .. 'instances', all[i])
    elseif all[i] ~= U.instance then
      live = true
      taken[number] = true
      low, high = oldest > low and oldest or low, newest < high and newest or high
    end
  end
  return live, taken, low, high
end

-- Chooses the newest format that all instances can read and write: a newer one as soon as every instance present had
-- time to announce itself, an older one at once, as long as all read it. From then on instances that cannot read it are
-- refused, so none can join in between.
local function choose_format(writes)
  if writes == formats.written then return end
  local _, _, low, high = instances.others()
  low, high = FORMAT_OLDEST > low and FORMAT_OLDEST or low, writes < high and writes or high
  if high < low or high == formats.written then return end
  if high > formats.written and U.now - formats.since <= INSTANCE_MS then return end
  formats.written, formats.since, formats.changed = high, U.now, true
  if high < formats.oldest then formats.oldest = high end
  if high > formats.newest then formats.newest = high end
end

-- The clock was stepped: shift the times of their last calls.
function instances.move(by)
  local all = call('HGETALL', KEY .. 'instances')
  for i = 1, #all, 2 do
    local last = instance_read(all[i + 1])
    if last then
      call('HSET', KEY .. 'instances', all[i], (string.gsub(all[i + 1], '^%-?%d+', string.format('%.0f', last + by))))
    end
  end
end

local function instance_write(number, writes, version)
  call('HSET', KEY .. 'instances', U.instance, U.now .. ' ' .. number .. ' ' .. FORMAT_OLDEST ..
    ' ' .. writes .. ' ' .. version)
end

-- The store was emptied since the caller got its number: it keeps the number unless another instance has it now. Its
-- next Y supplies the rest.
function instances.keep_number(number)
  local _, taken = instances.others()
  if taken[number] then return false end
  instance_write(number, formats.written, '?')
  return true
end

-- The number it had, if this store has no record of it because of a failover or because it was emptied. Otherwise
-- numbers are assigned in turn, so that a freed number is not reused soon.
local function free_number(had)
  local _, taken = instances.others()
  if had > 0 and not taken[had] then return had end
  for _ = 1, LIMIT.NUMBERS do
    local number = (call('HINCRBY', KEY .. 'meta', 'numbers', 1) - 1) % LIMIT.NUMBERS + 1
    if not taken[number] then return number end
  end
  return 0
end

function instances.is_live(name)
  local kept = call('HGET', KEY .. 'instances', name)
  local last = kept and instance_read(kept)
  return last and U.now - last <= INSTANCE_MS
end

-- Was this number ever assigned?
local function was_given(number)
  return number > 0 and number <= tonumber(call('HGET', KEY .. 'meta', 'numbers') or 0)
end

-- The number's owner has not called for a while (it should once a second), or has left.
function is_silent(number)
  local silent = rawget(U, 'silent')
  if not silent then
    local all = call('HGETALL', KEY .. 'instances')
    silent = {}
    for i = 1, #all, 2 do
      local last, its = instance_read(all[i + 1])
      if its then silent[its] = all[i] ~= U.instance and U.now - last > SILENT_MS end
    end
    U.silent = silent
  end
  if silent[number] == nil then silent[number] = was_given(number) end
  return silent[number]
end

-- The caller's number, valid for another INSTANCE_MS; 0 when none are free.
local function instance_number(op)
  local known = call('HGET', KEY .. 'instances', U.instance)
  local number = known and select(2, instance_read(known)) or free_number(op.number)
  if number > 0 then
    instance_write(number, op.writes, op.version)
    choose_format(op.writes)
  end
  return number
end

local function number_answer(number)
  return {number > 0 and ERR.OK or ERR.CONFLICT, false, false, number}
end

-- The instance is still alive.
function verbs.Y(op)
  return number_answer(instance_number(op))
end

-- An instance starts with empty memory. If no other instance is present, nothing could be renewed: running leases get a
-- full term, and waiting jobs have no owner, so sweeps free them, see free_some. Other instances keep what they hold;
-- holds of a previous owner of this number expired before the number was free again, see SCHED_HOLD_MS.
function verbs.I(op)
  local alone = not instances.others()
  local number = instance_number(op)
  if alone then note_pause() end
  if alone and U.active > 0 then
    grace_begin(op.ttl, op.f2f_ttl)
    U.free_at = 1
  end
  return number_answer(number)
end

local PART_TICKS, PART_IDS = 64, 512 -- per call, because other calls wait meanwhile
local TICK = 65536 -- elements of one list to check; more is not worth it

-- Makes what one of them holds due at once. Most jobs on the wheel are over or running: only their state is read.
local function let_go(ids, from, to, is_freed)
  local got = records_read(ids, from, to)
  for i = 1, #got do
    local state = got[i] and byte(got[i], records.job[byte(got[i])].at.state)
    local j = (state == NEW or state == SELECTING or state == RETRYING) and job_get(ids[from + i - 1])
    if j and is_waiting(j) and j.lane == NO_LANE and is_freed(j.owner) and j.due > U.clock then
      j.due = U.clock
      job_place(j)
    end
  end
end

-- Handles a part of the wheel: `at` is a tick and an element of its list. Returns where to continue; 0: done.
local function free_part(at, is_freed)
  local ticks = call('ZRANGEBYSCORE', KEY .. 'wheel', floor(at / TICK), '+inf', 'LIMIT', 0, PART_TICKS)
  local looked = 0
  for i = 1, #ticks do
    local tick = tonumber(ticks[i])
    local element = floor(at / TICK) == tick and at % TICK or 0
    repeat
      local ids = {}
      local taken, more = wheel.ids(ticks[i], element, ids)
      for from = 1, #ids, ARGS_MAX do
        let_go(ids, from, from + ARGS_MAX - 1 < #ids and from + ARGS_MAX - 1 or #ids, is_freed)
      end
      looked, element = looked + #ids, element + taken
      if looked >= PART_IDS then
        return more and element < TICK and tick * TICK + element or (tick + 1) * TICK
      end
    until not more or element >= TICK
  end
  return #ticks == PART_TICKS and (tonumber(ticks[PART_TICKS]) + 1) * TICK or 0
end

-- Frees some waiting jobs whose owner is gone.
function free_some()
  if U.free_at == 0 then return end
  local _, taken = instances.others()
  local own = call('HGET', KEY .. 'instances', U.instance)
  if own then taken[select(2, instance_read(own))] = true end
  U.free_at = free_part(U.free_at, function(owner) return not taken[owner] end)
end

-- A clean shutdown: what it holds need not wait for the hold to expire. Returns where on the wheel to continue; 0:
-- done.
function verbs.L(op)
  local at = free_part(op.from, function(owner) return owner == op.owner end)
  if at == 0 then call('HDEL', KEY .. 'instances', U.instance) end
  return {ERR.OK, false, false, at}
end

end
