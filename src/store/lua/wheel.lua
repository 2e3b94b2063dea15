-- Where a job stands: on the wheel, among what is about to run out, among what ran out and waits for
-- the sweep, or nowhere.
--
-- Few jobs ever run out, so when they would is not kept exactly. The wheel is a list for each quarter
-- of a second with the ids of jobs that must be looked at then; one element for each batch that
-- added some. A term that becomes longer (an ACK, a heartbeat) changes nothing there: when its time
-- comes the job is looked at, and put where it is due by now. Only what runs out within the quarter
-- of a second that has begun stands, to the millisecond, in the sorted set `due`.
local WHEEL_FAR_MS = 3600000 -- what is due later is looked at once an hour
local tick_of, wheel_list, wheel_add, job_due, job_lapsed, job_nowhere, wheel_turn, write_wheel,
  write_due, write_lapsed
local wheel = {} -- what is seldom needed: Lua has room for 200 locals
do
local TICK_MS = 256

function tick_of(ms)
  return floor(ms / TICK_MS)
end

function wheel_list(ms)
  local tick = tick_of(ms)
  local list = U.wheel[tick]
  if not list then
    list = {count = 0}
    U.wheel[tick] = list
  end
  return list
end

function wheel_add(list, id)
  local count = list.count + 1
  list[count], list.count = id, count
end

local function wheel_file(j)
  local ms = j.due
  if ms > U.now + WHEEL_FAR_MS then ms = U.now + WHEEL_FAR_MS end
  wheel_add(wheel_list(ms), j.id)
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
    U.due[j.id] = j.due
    if j.due < U.ripe then U.ripe = j.due end
    return
  end
  job_at(j, AT_WHEEL)
  if j.filed > j.due or tick_of(j.filed) <= U.wheel_at then wheel_file(j) end
end

function job_lapsed(j)
  job_at(j, AT_LAPSED)
  U.lapse_seq = U.lapse_seq + 1
  U.lapsed[j.id] = U.lapse_seq
end

function job_nowhere(j)
  job_at(j, AT_NOWHERE)
end

-- The ids in one list of the wheel.
function wheel.ids(tick, ids)
  local parts = call('LRANGE', KEY .. 'w:' .. tick, 0, -1)
  for i = 1, #parts do
    local part = parts[i]
    for at = 1, #part, 14 do ids[#ids + 1] = sub(part, at, at + 13) end
  end
  return ids
end

-- Most of them are over by now: their records are let go again at once. Nearly all are in the bucket
-- of the first; where one is that is not there is looked up for it alone.
local function wheel_look(tick, ids, from, to)
  local got = call('HMGET', KEY .. 'j:' .. bucket_of(ids[from]), unpack_list(ids, from, to))
  for i = 1, #got do
    local id, packed = ids[from + i - 1], got[i]
    packed = packed or call('HGET', KEY .. 'j:' .. bucket_of(id), id)
    if packed and byte(packed, 6) == AT_WHEEL and
      tick_of(unpack_struct('<i6', packed, 40)) == tick then
      U.touched = true
      job_due(job_get(id))
    end
  end
end

-- Looks at those whose time has come. At the beginning of a batch: nothing has changed yet.
function wheel_turn()
  local now_tick = tick_of(U.now)
  if now_tick <= U.wheel_at then return end
  local ticks = call('ZRANGEBYSCORE', KEY .. 'wheel', '-inf', now_tick)
  U.wheel_at = now_tick
  for i = 1, #ticks do
    local ids = wheel.ids(ticks[i], {})
    call('DEL', KEY .. 'w:' .. ticks[i])
    for from = 1, #ids, ARGS_MAX do
      local to = from + ARGS_MAX - 1
      wheel_look(tonumber(ticks[i]), ids, from, to < #ids and to or #ids)
    end
  end
  if #ticks > 0 then call('ZREMRANGEBYSCORE', KEY .. 'wheel', '-inf', now_tick) end
end

function write_wheel()
  for tick, ids in pairs(U.wheel) do
    if ids.count > 0 and call('RPUSH', KEY .. 'w:' .. tick, concat(ids)) == 1 then
      call('ZADD', KEY .. 'wheel', tick, tick)
    end
  end
  U.wheel = nil
  columns.forget() -- its terms have the lists
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

-- All jobs that are not over.
function wheel.active_ids()
  write_due()
  write_lapsed()
  write_wheel()
  local found = call('ZRANGE', KEY .. 'due', 0, -1)
  local more = call('ZRANGE', KEY .. 'lapsed', 0, -1)
  for i = 1, #more do found[#found + 1] = more[i] end
  local ticks = call('ZRANGE', KEY .. 'wheel', 0, -1)
  for i = 1, #ticks do wheel.ids(ticks[i], found) end
  jobs_prefetch(found)
  local ids, seen = {}, {}
  for i = 1, #found do
    local id = found[i]
    if not seen[id] then
      seen[id] = true
      local j = U.jobs[id]
      local packed = j == nil and job_raw(id)
      if (j and j.place ~= AT_NOWHERE) or (packed and byte(packed, 6) ~= AT_NOWHERE) then
        ids[#ids + 1] = id
      end
    end
  end
  return ids
end

end
