-- What every instance does once a second: it tidies up. A block, because Lua has room for 200 locals.
do

-- The auditor of ruling 5: recounts nodes from the leases they list, a part at a time.
local function audit_node(n)
  local reserved, running, kept, repairs = 0, 0, '', 0
  for id in string.gmatch(n.leases, '%S+') do
    local j = job_get(id)
    if j and j.lease ~= NONE and j.node == n.id then
      kept = kept .. ' ' .. id
      if j.epoch == n.epoch then
        if j.lease == RESERVED_LEASE then reserved = reserved + 1 else running = running + 1 end
      end
    end
  end
  if reserved ~= n.reserved then repairs = repairs + 1 end
  if running ~= n.running then repairs = repairs + 1 end
  if repairs > 0 or kept ~= n.leases then
    n.reserved, n.running, n.leases = reserved, running, kept
    node_changed(n)
  end
  return repairs
end

local function audit()
  local page = call('HSCAN', KEY .. 'n', cursor_get('audit'), 'COUNT', 64)
  local repairs = 0
  cursor_set('audit', page[1])
  for i = 1, #page[2], 2 do
    local n = node_get(page[2][i])
    if n then repairs = repairs + audit_node(n) end
  end
  return repairs
end

-- Buckets whose jobs all changed too long ago, some at a time: the oldest may live on for long. One
-- with a callback that waits is kept.
local function purge_old()
  local from = tonumber(cursor_get('purge'))
  local list = call('ZRANGE', KEY .. 'buckets', from, from + 7)
  cursor_set('purge', #list == 8 and from + 7 or 0)
  for i = 1, #list do
    local bucket = list[i]
    local left = call('PTTL', KEY .. 'j:' .. bucket)
    if left == -2 or (left >= 0 and left < BUCKET_SPARE_MS) then
      local waits = call('ZRANGEBYLEX', KEY .. 'callbacks', '[' .. bucket, '[' .. bucket .. '~',
        'LIMIT', 0, 1)
      if #waits > 0 then
        bucket_keep(bucket, false)
      else
        call('UNLINK', KEY .. 'j:' .. bucket, KEY .. 'l:' .. bucket)
        call('ZREM', KEY .. 'buckets', bucket)
      end
    end
  end
end

-- No more finished ones than allowed: the oldest go first, a part at a time.
local function purge_many(jobs_max)
  local list = call('ZRANGE', KEY .. 'buckets', 0, -1)
  local count = -call('ZCARD', KEY .. 'due') - call('ZCARD', KEY .. 'lapsed')
  for i = 1, #list do count = count + call('ZCARD', KEY .. 'l:' .. list[i]) end
  local at, budget = 1, 1024
  while count > jobs_max and list[at] and budget > 0 do
    local ids = call('ZRANGE', KEY .. 'l:' .. list[at], 0, budget - 1)
    local gone, fields = {}, {}
    jobs_prefetch(ids)
    for i = 1, #ids do
      local j = job_get(ids[i])
      if count > jobs_max and (not j or (is_over(j) and j.callback ~= CALLBACK.PENDING)) then
        gone[#gone + 1] = ids[i]
        for _, tail in ipairs({'', ':s', ':h', ':r', ':k'}) do
          fields[#fields + 1] = ids[i] .. tail
        end
        U.jobs[ids[i]] = false
        count = count - 1
      end
    end
    budget = budget - #ids
    if #gone > 0 then
      call_in_parts('ZREM', KEY .. 'l:' .. list[at], gone)
      call_in_parts('HDEL', KEY .. 'j:' .. list[at], fields)
      if call('EXISTS', KEY .. 'l:' .. list[at]) == 0 then
        call('ZREM', KEY .. 'buckets', list[at])
      end
    end
    at = at + 1
  end
end

function verbs.T(op)
  breakers_tidy()
  local repairs = audit()
  if U.retention > 0 then purge_old() end
  if op.jobs_max > 0 then purge_many(op.jobs_max) end
  return {ERR.OK, false, false, repairs}
end
end
