-- Lanes: waiting jobs that no instance holds. `q:LANE` has those of one lane, higher priority first, then the smaller
-- id; `lanes` has all non-empty lanes, by number. A lane's number is kept as eight bytes here, as in records, because
-- Lua's numbers are too short. Its name is the number in hexadecimal digits.
local lanes = {}
do

local AUDIT_MAX, AUDIT_LANES = 256, 16 -- jobs and lanes checked per call

local function name_of(lane)
  local a, b, c, d, e, f, g, h = byte(lane, 1, 8)
  return string.format('%02x%02x%02x%02x%02x%02x%02x%02x', h, g, f, e, d, c, b, a)
end

-- The number of jobs in all lanes, and the progress of the audit's recount: `sum` of the lanes up to `upto`, '' when
-- not counting. `meta.waiting` has them as a text.
local function tally()
  local t = U.waiting
  if not t.count then
    local count, sum, upto = string.match(call('HGET', KEY .. 'meta', 'waiting') or '', '^(%d+) (%d+) (%x*)$')
    t.count, t.sum, t.upto, t.changed = tonumber(count or 0), tonumber(sum or 0), upto or '', false
  end
  return t
end

local function moved(name, by)
  local t = tally()
  t.count, t.changed = t.count + by, true
  if name <= t.upto then t.sum = t.sum + by end
  -- Negative: someone edited the data by hand; the audit will repair it.
  if t.count < 0 then t.count = 0 end
  if t.sum < 0 then t.sum = 0 end
end

-- The waiting jobs and bytes of an account: "JOBS BYTES" in `accounts`. What each job was counted for is in `counted`,
-- "BYTES ACCOUNT", so that a job that leaves subtracts what it added.
local function account_of(name)
  local a = U.accounts[name]
  if not a then
    local jobs, bytes = string.match(call('HGET', KEY .. 'accounts', name) or '', '^(%d+) (%d+)$')
    a = {jobs = tonumber(jobs or 0), bytes = tonumber(bytes or 0), changed = false}
    U.accounts[name] = a
  end
  return a
end

local function account_leave(id)
  local bytes, name = string.match(call('HGET', KEY .. 'counted', id) or '', '^(%d+) (.+)$')
  if not bytes then return end
  local a = account_of(name)
  call('HDEL', KEY .. 'counted', id)
  a.jobs, a.bytes, a.changed = a.jobs - 1, a.bytes - bytes, true
end

local function account_enter(id, op)
  if op.account == '' then return end
  local a = account_of(op.account)
  call('HSET', KEY .. 'counted', id, string.format('%.0f', op.bytes) .. ' ' .. op.account)
  a.jobs, a.bytes, a.changed = a.jobs + 1, a.bytes + op.bytes, true
end

local function is_over(have, max)
  return max > 0 and have > max
end

-- The error that keeps it from waiting in the lane of `op`; `from` is its current lane. Same as ledger_refusal().
function lanes.refusal(from, op)
  if from ~= op.lane and op.lane_max > 0 and
    call('ZCARD', KEY .. 'q:' .. name_of(op.lane)) >= op.lane_max then
    return ERR.QUEUE_FULL
  end
  if from ~= NO_LANE then return ERR.OK end
  if op.all_max > 0 and tally().count >= op.all_max then return ERR.QUEUES_FULL end
  if op.account == '' then return ERR.OK end
  local a = account_of(op.account)
  if is_over(a.jobs + 1, op.jobs_max) then return ERR.QUOTA_WAITING end
  if is_over(a.bytes + op.bytes, op.bytes_max) then return ERR.QUOTA_BYTES end
  return ERR.OK
end

local function lane_forget(name)
  if call('EXISTS', KEY .. 'q:' .. name) == 0 then call('ZREM', KEY .. 'lanes', name) end
end

-- No effect if it is in none. The caller places the job.
function lanes.leave(j)
  if j.lane == NO_LANE then return end
  local name = name_of(j.lane)
  moved(name, 0 - call('ZREM', KEY .. 'q:' .. name, j.id))
  account_leave(j.id)
  lane_forget(name)
  limits.leave(j)
  j.lane, j.priority = NO_LANE, 0
end

-- Moves the job to the lane of `op`. The caller sets the due time and places it.
function lanes.enter(j, op)
  lanes.leave(j)
  local name, priority = name_of(op.lane), op.priority
  local key = KEY .. 'q:' .. name
  moved(name, call('ZADD', key, 0 - priority, j.id)) -- no -0
  account_enter(j.id, op)
  if call('ZCARD', key) == 1 then call('ZADD', KEY .. 'lanes', 0, name) end
  if call('ZRANK', key, j.id) < LIMIT.LANE_ANNOUNCED then U.fronts[#U.fronts + 1] = name .. ' ' .. priority .. ' ' .. j.id end
  limits.enter(j)
  j.lane, j.priority = op.lane, priority
end

-- The audit reaches this lane; nil: it is done with all. Jobs that enter or leave lanes already counted are counted by
-- moved().
local function count_on(is_first, name)
  local t = tally()
  if is_first then t.sum, t.upto = 0, '' end
  if not is_first and t.upto == '' then return end -- that round began before counting was introduced
  if name then
    t.sum, t.upto = t.sum + call('ZCARD', KEY .. 'q:' .. name), name
  else
    t.count, t.sum, t.upto = t.sum, 0, ''
  end
  t.changed = true
end

-- The lane being audited and the position in it. A cursor of 0: that lane is done.
local function audited()
  local name, cursor = string.match(cursor_get('lanes'), '^(%x+) (%d+)$')
  if cursor ~= '0' and name then return name, cursor end
  local after = call('ZRANGEBYLEX', KEY .. 'lanes', name and '(' .. name or '-', '+', 'LIMIT', 0, 1)[1]
  count_on(not name, after)
  if not after then
    cursor_set('lanes', '0')
    U.lane_round = U.lane_round + 1 -- see limit.lua
  end
  return after, '0'
end

-- A job listed in a lane that does not exist or waits elsewhere would take up a place forever: removes those, a part of
-- a lane at a time. Returns how many there were (left by manual edits) and how many jobs were checked; nil: all lanes
-- are done.
local function audit_lane()
  local name, cursor = audited()
  if not name then return 0, nil end
  local page = call('ZSCAN', KEY .. 'q:' .. name, cursor, 'COUNT', AUDIT_MAX)
  local ids, wrong = {}, 0
  for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
  jobs_prefetch(ids)
  for i = 1, #ids do
    local j = job_get(ids[i])
    if not j or j.lane == NO_LANE or name_of(j.lane) ~= name then
      moved(name, 0 - call('ZREM', KEY .. 'q:' .. name, ids[i]))
      wrong = wrong + 1
    else
      limits.count_waiting(j)
    end
  end
  lane_forget(name)
  cursor_set('lanes', name .. ' ' .. page[1])
  return wrong, #ids
end

-- Removes jobs counted for an account that no longer wait, because they were removed by hand or by an older release.
local function audit_accounts()
  local page = call('HSCAN', KEY .. 'counted', cursor_get('counted'), 'COUNT', AUDIT_MAX)
  local ids = {}
  for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
  jobs_prefetch(ids)
  for i = 1, #ids do
    local j = job_get(ids[i])
    if not j or j.lane == NO_LANE then account_leave(ids[i]) end
  end
  cursor_set('counted', page[1])
  if #ids == 0 and call('EXISTS', KEY .. 'counted') == 0 then
    call('UNLINK', KEY .. 'accounts')
    U.accounts = nil
  end
end

function lanes.audit()
  local wrong, looked = 0, 0
  for _ = 1, AUDIT_LANES do
    local found, count = audit_lane()
    wrong, looked = wrong + found, looked + (count or AUDIT_MAX)
    if looked >= AUDIT_MAX then break end
  end
  audit_accounts()
  return wrong
end

local function write_account(name, a)
  if a.jobs > 0 then
    call('HSET', KEY .. 'accounts', name, string.format('%.0f %.0f', a.jobs, a.bytes > 0 and a.bytes or 0))
  else
    call('HDEL', KEY .. 'accounts', name)
  end
end

function lanes.write()
  local t = rawget(U, 'waiting')
  if t and t.changed then
    call('HSET', KEY .. 'meta', 'waiting', string.format('%.0f %.0f ', t.count, t.sum) .. t.upto)
  end
  for name, a in pairs(rawget(U, 'accounts') or {}) do
    if a.changed then write_account(name, a) end
  end
end

-- Announces jobs that became one of the first of their lane.
function lanes.publish()
  local fronts = rawget(U, 'fronts')
  if not fronts then return end
  for i = 1, #fronts do call('PUBLISH', KEY .. 'first', U.gen .. ' ' .. U.instance .. ' ' .. fronts[i]) end
end

end
