-- Where a job is filed: on the wheel, among those about to expire, among the expired ones waiting for the sweep, or
-- nowhere.
--
-- Few jobs ever expire, so their expiry times are not indexed exactly. The wheel has a list per quarter of a second
-- with the ids of jobs to check then, one element per batch that added some. A term that grows (an ACK, a heartbeat)
-- changes nothing there: at the old time the job is checked and moved to where it is due now. Only jobs that expire
-- within the current quarter of a second are in the sorted set `due`, to the millisecond.
--
-- Very many waiting jobs may expire at once, so leases go before them: in `due` the scores of waiting jobs are larger
-- by WAITS, and in `lapsed` the scores of leases are smaller by WAITS.
local WHEEL_FAR_MS = 3600000 -- jobs due later are checked once an hour
local tick_of, job_due, job_lapsed, job_nowhere, wheel_turn, write_wheel, write_due, write_lapsed
local job_place -- lease.lua
local wheel = {WAITS = 4503599627370496} -- rarely used values: Lua allows only 200 locals
do
local WAITS = wheel.WAITS
local TICK_MS = 256
local PART_MAX = 512 -- ids of one element of a list; a part of a list ends with the element that reaches it
local ELEMENTS = 64 -- and has at most this many elements
-- How many one call checks and moves, plus the rest of a part; the next call continues.
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

-- The count of jobs that are not over.
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

-- Reads elements of a wheel list, starting at one, until there are enough ids. Returns how many elements, and whether
-- there may be more.
function wheel.ids(tick, from, ids)
  local parts = call('LRANGE', KEY .. 'w:' .. tick, from, from + ELEMENTS - 1)
  for i = 1, #parts do
    local part = parts[i]
    for at = 1, #part, JOB_ID do ids[#ids + 1] = sub(part, at, at + JOB_ID - 1) end
    if #ids >= PART_MAX then return i, i < #parts or #parts == ELEMENTS end
  end
  return #parts, #parts == ELEMENTS
end

-- Most of them are over by now: their records are released again at once.
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

-- Checks a part of the jobs whose time has come. Called at the beginning of a batch, before anything has changed.
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
  if not rawget(U, 'wheel') then return end
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
