-- Instances: each has a name of its own (another one after every start) and a number, which stands in
-- the ids of its jobs. Both are its own as long as it calls; the number of one that fell silent goes to
-- another, and whoever comes back after that gets a new one.
local others_live, is_live

do -- Lua has room for 200 locals

local INSTANCE_MS = 15000 -- redis.c stops using a number well before
local NUMBERS = 511 -- 0 is the embedded store's

local function instance_read(text)
  local last, number, version = string.match(text, '^(%-?%d+) (%d+) (.*)$')
  return tonumber(last), tonumber(number), version
end

-- Is anybody else there to renew and to hold? The numbers that are taken; those that went without a word
-- are forgotten.
function others_live()
  local all = call('HGETALL', KEY .. 'instances')
  local live, taken = false, {}
  for i = 1, #all, 2 do
    local last, number = instance_read(all[i + 1])
    if all[i] ~= U.instance and U.now - last > INSTANCE_MS then
      call('HDEL', KEY .. 'instances', all[i])
    elseif all[i] ~= U.instance then
      live = true
      taken[number] = true
    end
  end
  return live, taken
end

-- One after the other, so that a number that became free is not used again soon.
local function free_number()
  local _, taken = others_live()
  for _ = 1, NUMBERS do
    local number = (call('HINCRBY', KEY .. 'meta', 'numbers', 1) - 1) % NUMBERS + 1
    if not taken[number] then return number end
  end
  return 0
end

function is_live(name)
  local kept = call('HGET', KEY .. 'instances', name)
  return kept and U.now - instance_read(kept) <= INSTANCE_MS
end

-- The number of whoever calls, for another INSTANCE_MS; 0 when there are none left.
local function instance_number(version)
  local known = call('HGET', KEY .. 'instances', U.instance)
  local number = known and select(2, instance_read(known)) or free_number()
  if number > 0 then
    call('HSET', KEY .. 'instances', U.instance, U.now .. ' ' .. number .. ' ' .. version)
  end
  return number
end

local function number_answer(number)
  return {number > 0 and ERR.OK or ERR.CONFLICT, false, false, number}
end

-- It is still there.
function verbs.Y(op)
  return number_answer(instance_number(op.version))
end

-- The first one after a pause of all: nobody could renew meanwhile, so a running lease gets a full
-- term, and even past its time-out a grace in which its node can still report.
local function full_term(j, op)
  local until_ms = later(U.now, lease_term(j, op))
  if j.run_until ~= 0 and j.run_until < U.now + AWAY_GRACE_MS then
    j.run_until = U.now + AWAY_GRACE_MS
  end
  if j.run_until ~= 0 and until_ms > j.run_until then until_ms = j.run_until end
  j.due = until_ms
end

-- An instance begins with an empty memory. When nobody else is there, what waits is due at once. What
-- others hold is theirs; what one held that had this number before ran out before that was free again,
-- see SCHED_HOLD_MS.
function verbs.I(op)
  local alone = not others_live()
  local number = instance_number(op.version)
  local ids = alone and wheel.active_ids() or {}
  for i = 1, #ids do
    local j = job_get(ids[i])
    if j and j.lease == RUNNING_LEASE then
      full_term(j, op)
      job_place(j)
    elseif j and is_waiting(j) then
      j.due = U.now
      job_place(j)
    end
  end
  return number_answer(number)
end

local PART_TICKS, PART_IDS = 64, 1000 -- one call looks at so many: others wait meanwhile

-- What it holds is due at once. Most that the wheel has is over or runs: of that only the state is read.
-- What is of another bucket than the first is looked up for itself.
local function let_go(ids, from, to, owner)
  local got = call('HMGET', KEY .. 'j:' .. bucket_of(ids[from]), unpack_list(ids, from, to))
  for i = 1, #got do
    local state = got[i] and byte(got[i])
    local j = (not state or state == NEW or state == SELECTING or state == RETRYING) and
      job_get(ids[from + i - 1])
    if j and is_waiting(j) and j.owner == owner and j.due > U.now then
      j.due = U.now
      job_place(j)
    end
  end
end

-- It goes in peace: what it held need not wait for its hold to lapse. Answers from where on the wheel
-- there is more; 0: it is gone.
function verbs.L(op)
  local ticks = call('ZRANGEBYSCORE', KEY .. 'wheel', op.from, '+inf', 'LIMIT', 0, PART_TICKS)
  local looked, at = 0, 1
  while at <= #ticks and looked < PART_IDS do
    local ids = wheel.ids(ticks[at], {})
    for from = 1, #ids, ARGS_MAX do
      let_go(ids, from, from + ARGS_MAX - 1 < #ids and from + ARGS_MAX - 1 or #ids, op.owner)
    end
    looked, at = looked + #ids, at + 1
  end
  if at <= #ticks or #ticks == PART_TICKS then
    return {ERR.OK, false, false, tonumber(ticks[at - 1]) + 1}
  end
  call('HDEL', KEY .. 'instances', U.instance)
  return {ERR.OK, false, false, 0}
end

end
