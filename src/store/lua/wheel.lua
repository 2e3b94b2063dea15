-- Where a job stands: on the wheel, among what is about to run out, among what ran out and waits for
-- the sweep, or nowhere.
--
-- Few jobs ever run out, so when they would is not kept exactly. The wheel is a list for each quarter
-- of a second with the ids of jobs that must be looked at then; one element for each batch that
-- added some. A term that becomes longer (an ACK, a heartbeat) changes nothing there: when its time
-- comes the job is looked at, and put where it is due by now. Only what runs out within the quarter
-- of a second that has begun stands, to the millisecond, in the sorted set `due`.
--
-- Of jobs that wait very many may run out at once. So leases are before them: in `due` what waits has a score that
-- is larger by WAITS, and in `lapsed` what had a lease has one that is smaller by as much.
local WHEEL_FAR_MS = 3600000 -- what is due later is looked at once an hour
local tick_of, job_due, job_lapsed, job_nowhere, wheel_turn, write_wheel, write_due, write_lapsed
local job_place -- lease.lua
local wheel = {WAITS = 4503599627370496} -- what is seldom needed: Lua has room for 200 locals
do
local WAITS = wheel.WAITS
local TICK_MS = 256
local PART_MAX = 512 -- ids of one element of a list; a part of a list ends with the element that reaches it
local ELEMENTS = 64 -- and has no more of them
-- So many one call looks at, and moves, and the rest of a part; the next goes on.
local LOOK_MAX, MOVE_MAX = 2048, 512

function tick_of(ms)
  return floor(ms / TICK_MS)
end

function wheel.list(tick)
  local list = U.wheel[tick]
  if not list then
    list = {count = 0}
    U.wheel[tick] = list
  end
  return list
end

function wheel.add(list, id)
  local count = list.count + 1
  list[count], list.count = id, count
end

local function wheel_file(j)
  local ms = j.due
  if ms > U.clock + WHEEL_FAR_MS then ms = U.clock + WHEEL_FAR_MS end
  wheel.add(wheel.list(tick_of(ms)), j.id)
  j.filed = ms
end

-- The count of those that are not over.
local function job_at(j, place)
  if j.place == AT_NOWHERE and place ~= AT_NOWHERE then U.active = U.active + 1 end
  if j.place ~= AT_NOWHERE and place == AT_NOWHERE then U.active = U.active - 1 end
  if j.place == AT_DUE and place ~= AT_DUE then U.due[j.id] = false end
  if j.place == AT_LAPSED and place ~= AT_LAPSED then U.lapsed[j.id] = false end
  j.place = place
  U.dirty[j.id] = j
  j.packed = nil
end

function job_due(j)
  if tick_of(j.due) <= U.wheel_at then
    job_at(j, AT_DUE)
    if j.lease == NONE then
      U.due[j.id] = WAITS + j.due
    else
      U.due[j.id] = j.due
      if j.due < U.ripe then U.ripe = j.due end
    end
    return
  end
  job_at(j, AT_WHEEL)
  if j.filed > j.due or tick_of(j.filed) <= U.wheel_at then wheel_file(j) end
end

function job_lapsed(j)
  job_at(j, AT_LAPSED)
  U.lapse_seq = U.lapse_seq + 1
  U.lapsed[j.id] = (j.lease == NONE and j.ran_out == NONE) and U.lapse_seq or U.lapse_seq - WAITS
end

function job_nowhere(j)
  job_at(j, AT_NOWHERE)
end

-- Some elements of a list of the wheel, from one of them on, until there are enough ids. Answers how many
-- elements, and whether there may be more.
function wheel.ids(tick, from, ids)
  local parts = call('LRANGE', KEY .. 'w:' .. tick, from, from + ELEMENTS - 1)
  for i = 1, #parts do
    local part = parts[i]
    for at = 1, #part, JOB_ID do ids[#ids + 1] = sub(part, at, at + JOB_ID - 1) end
    if #ids >= PART_MAX then return i, i < #parts or #parts == ELEMENTS end
  end
  return #parts, #parts == ELEMENTS
end

-- Most of them are over by now: their records are let go again at once.
local function wheel_look(tick, ids, from, to)
  local moved = 0
  local got = records_read(ids, from, to)
  for i = 1, #got do
    local id, packed = ids[from + i - 1], got[i]
    if packed and packed_place(packed) == AT_WHEEL then
      local filed = unpack_struct('<i6', packed, records.job[byte(packed)].at.filed)
      if tick_of(filed) == tick then
        U.touched, moved = true, moved + 1
        if job_raw(id) == nil then U.raw[id] = packed end
        job_place(job_get(id))
      end
    end
  end
  return moved
end

-- Looks at a part of those whose time has come. At the beginning of a batch: nothing has changed yet.
function wheel_turn()
  local now_tick, looked, moved = tick_of(U.clock), 0, 0
  if now_tick > U.wheel_at then U.wheel_at = now_tick end
  if U.wheel_at <= U.wheel_done then return end
  while looked < LOOK_MAX and moved < MOVE_MAX do
    local tick = call('ZRANGEBYSCORE', KEY .. 'wheel', '-inf', U.wheel_at, 'LIMIT', 0, 1)[1]
    if not tick then
      U.wheel_done = U.wheel_at
      return
    end
    local ids = {}
    local taken, more = wheel.ids(tick, 0, ids)
    if more then
      call('LTRIM', KEY .. 'w:' .. tick, taken, -1)
    else
      call('DEL', KEY .. 'w:' .. tick)
      call('ZREM', KEY .. 'wheel', tick)
    end
    for from = 1, #ids, ARGS_MAX do
      local to = from + ARGS_MAX - 1
      moved = moved + wheel_look(tonumber(tick), ids, from, to < #ids and to or #ids)
    end
    looked = looked + #ids
  end
end

function write_wheel()
  for tick, ids in pairs(U.wheel) do
    local is_new = false
    for from = 1, ids.count, PART_MAX do
      local to = from + PART_MAX - 1
      local part = concat(ids, '', from, to < ids.count and to or ids.count)
      is_new = call('RPUSH', KEY .. 'w:' .. tick, part) == 1 or is_new
    end
    if is_new then call('ZADD', KEY .. 'wheel', tick, tick) end
  end
  U.wheel = nil
end

local function write_places(name, places)
  local add, del = {}, {}
  for id, score in pairs(places) do
    if score then
      add[#add + 1] = score
      add[#add + 1] = id
    else
      del[#del + 1] = id
    end
  end
  if #add > 0 then call_in_parts('ZADD', KEY .. name, add, 2) end
  if #del > 0 then call_in_parts('ZREM', KEY .. name, del) end
end

function write_due()
  if next(U.due) then
    write_places('due', U.due)
    U.due = nil
  end
end

function write_lapsed()
  if next(U.lapsed) then
    write_places('lapsed', U.lapsed)
    U.lapsed = nil
  end
end

end
