-- Lanes: jobs that wait and that nobody holds. `q:LANE` has those of one lane, the higher priority first, then
-- the smaller id; `lanes` has the lanes in which any job stands, by their number. A lane is the eight bytes of
-- that number here, as a record has them: Lua's numbers are too short. Their names are its hexadecimal digits.
local lanes = {}
local cursor_get, cursor_set -- where a chore goes on the next time: breaker.lua
do

local AUDIT_MAX = 256 -- jobs one call looks at

local function name_of(lane)
  local a, b, c, d, e, f, g, h = byte(lane, 1, 8)
  return string.format('%02x%02x%02x%02x%02x%02x%02x%02x', h, g, f, e, d, c, b, a)
end

-- 0: there is room for any number.
function lanes.is_full(lane, max)
  return max > 0 and call('ZCARD', KEY .. 'q:' .. name_of(lane)) >= max
end

local function lane_forget(name)
  if call('EXISTS', KEY .. 'q:' .. name) == 0 then call('ZREM', KEY .. 'lanes', name) end
end

-- In none: nothing happens. Whoever calls places the job.
function lanes.leave(j)
  if j.lane == NO_LANE then return end
  local name = name_of(j.lane)
  call('ZREM', KEY .. 'q:' .. name, j.id)
  lane_forget(name)
  j.lane, j.priority = NO_LANE, 0
end

-- It waits in this lane, and in no other. Whoever calls says until when, and places it.
function lanes.enter(j, lane, priority)
  lanes.leave(j)
  local name = name_of(lane)
  local key = KEY .. 'q:' .. name
  call('ZADD', key, 0 - priority, j.id) -- no -0
  if call('ZCARD', key) == 1 then call('ZADD', KEY .. 'lanes', 0, name) end
  if call('ZRANK', key, j.id) < LIMIT.LANE_TOLD then U.fronts[#U.fronts + 1] = name .. ' ' .. priority .. ' ' .. j.id end
  j.lane, j.priority = lane, priority
end

-- The lane the audit looks at, and where in it. A cursor of 0: that one is done.
local function audited()
  local name, cursor = string.match(cursor_get('lanes'), '^(%x+) (%d+)$')
  if cursor ~= '0' and name then return name, cursor end
  local after = call('ZRANGEBYLEX', KEY .. 'lanes', name and '(' .. name or '-', '+', 'LIMIT', 0, 1)[1]
  if name and not after then cursor_set('lanes', '0') end
  return after, '0'
end

-- A job that a lane has, and that is not there or waits elsewhere, would keep a place for ever: it is taken out, a
-- part of a lane at a time. Answers how many there were: somebody else wrote or deleted here.
function lanes.audit()
  local name, cursor = audited()
  if not name then return 0 end
  local page = call('ZSCAN', KEY .. 'q:' .. name, cursor, 'COUNT', AUDIT_MAX)
  local ids, wrong = {}, 0
  for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
  jobs_prefetch(ids)
  for i = 1, #ids do
    local j = job_get(ids[i])
    if not j or j.lane == NO_LANE or name_of(j.lane) ~= name then
      call('ZREM', KEY .. 'q:' .. name, ids[i])
      wrong = wrong + 1
    end
  end
  lane_forget(name)
  cursor_set('lanes', name .. ' ' .. page[1])
  return wrong
end

-- Who knows the first jobs of lanes hears of those that came to stand among them.
function lanes.publish()
  local fronts = rawget(U, 'fronts')
  if not fronts then return end
  for i = 1, #fronts do call('PUBLISH', KEY .. 'first', U.gen .. ' ' .. U.instance .. ' ' .. fronts[i]) end
end

end
