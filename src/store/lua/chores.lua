-- What every instance does once a second: it tidies up. A block, because Lua has room for 200 locals.
do

-- The auditor of ruling 5: recounts nodes from the leases they list, a part at a time.
local function audit_node(n)
  local reserved, running, ids, held, repairs = 0, 0, {}, {}, 0
  for id in string.gmatch(n.leases, '%S+') do ids[#ids + 1] = id end
  jobs_prefetch(ids)
  for _, id in ipairs(ids) do
    local j = job_get(id)
    if j and j.lease ~= NONE and j.node == n.id then
      held[#held + 1] = ' ' .. id
      if j.epoch == n.epoch then
        if j.lease == RESERVED_LEASE then reserved = reserved + 1 else running = running + 1 end
      end
    end
  end
  local leases = concat(held)
  if reserved ~= n.reserved then repairs = repairs + 1 end
  if running ~= n.running then repairs = repairs + 1 end
  if repairs > 0 or leases ~= n.leases then
    n.reserved, n.running, n.leases = reserved, running, leases
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

-- A bucket is empty, or over.
local function bucket_forget(bucket)
  local left = tonumber(call('HGET', KEY .. 'counts', bucket) or '0')
  if bucket == U.bucket then
    left = left + U.bucket_count
    U.bucket, U.bucket_count = '', 0
  end
  U.total = U.total - left
  call('HDEL', KEY .. 'counts', bucket)
  call('ZREM', KEY .. 'buckets', bucket)
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
        bucket_forget(bucket)
      end
    end
  end
end

-- Of the jobs of one member of a list, those that may go and must; the others stay.
local function purge_part(key, part, fields, jobs_max)
  local ids, kept, gone = {}, {}, 0
  for at = 1, #part, 14 do ids[#ids + 1] = sub(part, at, at + 13) end
  jobs_prefetch(ids)
  for _, id in ipairs(ids) do
    local j = job_get(id)
    if U.total - U.active - gone > jobs_max and
      (not j or (is_over(j) and j.callback ~= CALLBACK.PENDING)) then
      gone = gone + 1
      for _, tail in ipairs({'', ':s', ':h', ':r', ':k', ':a'}) do fields[#fields + 1] = id .. tail end
      U.jobs[id], U.raw[id], U.dirty[id] = false, false, nil
    else
      kept[#kept + 1] = id
    end
  end
  if gone > 0 then
    call('ZREM', key, part)
    if #kept > 0 then call('ZADD', key, 0, concat(kept)) end
  end
  return gone, #kept > 0 and 1 or 0
end

local function purge_bucket(bucket, budget, jobs_max)
  local key, at = KEY .. 'l:' .. bucket, 0
  local fields, gone = {}, 0
  while budget > 0 and U.total - U.active - gone > jobs_max do
    local part = call('ZRANGE', key, at, at)[1]
    if not part then break end
    local less, stays = purge_part(key, part, fields, jobs_max + gone)
    gone, at, budget = gone + less, at + stays, budget - #part / 14
  end
  if gone > 0 then
    call_in_parts('HDEL', KEY .. 'j:' .. bucket, fields)
    bucket_count(bucket, -gone)
  end
  if call('EXISTS', key) == 0 then bucket_forget(bucket) end
  return budget
end

-- No more finished ones than allowed: the oldest go first, a part at a time.
local function purge_many(jobs_max)
  if U.total - U.active <= jobs_max then return end
  write_jobs() -- what this batch made is in the lists, too
  local list = call('ZRANGE', KEY .. 'buckets', 0, 63)
  local budget = 1024
  for i = 1, #list do
    if budget <= 0 or U.total - U.active <= jobs_max then return end
    budget = purge_bucket(list[i], budget, jobs_max)
  end
end

function verbs.T(op)
  breakers_tidy()
  U.tidied = true -- and nothing is kept longer than that
  local repairs = audit()
  if U.retention > 0 then purge_old() end
  if op.jobs_max > 0 then purge_many(op.jobs_max) end
  return {ERR.OK, false, false, repairs}
end
end
