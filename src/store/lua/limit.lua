-- Limits by key: model/limit.c. `limits` has the rules, by their pattern; `keys` the state of each key; `t:KEY` the
-- starts in its window, oldest first. Times are on the steady clock.
local limits = {}
local cursor_get, cursor_set -- where a chore continues next time: breaker.lua
do

-- Rules of recently used keys, as of `rules_at`: any change of a rule invalidates them.
local RULES_MAX = 4096
local rules_at, rules_known, rule_count = nil, {}, 0
local NO_RULE = {concurrency = -1, rate = -1, rate_ms = 0, queue = -1, pattern = ''}

local function rule_read(pattern, text)
  local concurrency, rate, rate_ms, queue = string.match(text, '^(%-?%d+) (%-?%d+) (%d+) (%-?%d+) ')
  return {
    pattern = pattern, concurrency = tonumber(concurrency or -1), rate = tonumber(rate or -1),
    rate_ms = tonumber(rate_ms or 0), queue = tonumber(queue or -1),
  }
end

-- An exact match, else the longest prefix: all candidates are requested at once.
local function rule_find(key)
  local patterns = {key}
  for length = #key, 0, -1 do patterns[#patterns + 1] = sub(key, 1, length) .. '*' end
  local got = call('HMGET', KEY .. 'limits', unpack_list(patterns))
  for i = 1, #patterns do
    if got[i] then return rule_read(patterns[i], got[i]) end
  end
  return NO_RULE
end

local function rule_of(key)
  if U.limits_version == 0 then return NO_RULE end
  if rules_at ~= U.limits_at or rule_count == RULES_MAX then rules_at, rules_known, rule_count = U.limits_at, {}, 0 end
  local rule = rules_known[key]
  if not rule then
    rule = rule_find(key)
    rules_known[key], rule_count = rule, rule_count + 1
  end
  return rule
end

-- A key: leases, jobs in lanes; until when it is held; the starts in its window: how many, the time of the first in the
-- list, and of the last, which is not in the list. Then the progress of the audits of leases and of lanes: the round in
-- which it was last checked and the count in that round; how many ids of jobs with a lease follow; those ids, and then
-- the reason of the hold.
local KEY_STATE = '<i4i4i6i4i6i6i4i4i4i4i4B'

local function starts_key(key)
  return KEY .. 't:' .. key
end

-- Marks it to be written at the end of the batch.
local function touch(k)
  if k.is_changed then return end
  local dirty = kept.dirty_keys
  k.is_changed, dirty[#dirty + 1] = true, k
  if k.is_new then kept.new_keys[#kept.new_keys + 1] = k end
end

-- The audit counts in rounds: each lease, and each job in a lane, has the round in which it was last counted, and is
-- counted when it begins or when the audit reaches it. So at the end of a round the count is the total.
local repairs = {in_flight = 0, waiting = 0} -- not yet reported by a tidy call

local function settle(k, count, round, counted, now_round)
  local right = k[round] == now_round - 1 and k[counted] or 0
  if k[count] ~= right then
    repairs[count], k[count] = repairs[count] + 1, right
    if count == 'in_flight' then k.holders, k.holders_text = {}, '' end -- unknown which of them are left
  end
  k[round], k[counted] = now_round, 0
  touch(k)
end

-- Some of the jobs that have a lease.
local function holders_read(packed, from, count)
  local ids = {}
  for i = 1, count do
    local id = sub(packed, from + (i - 1) * JOB_ID, from + i * JOB_ID - 1)
    ids[i], kept.holding[id] = id, true
  end
  return ids
end

-- Jobs that count toward a limit, shown to those waiting for it. In order of arrival. Returns whether there is room for
-- more of them.
local function holder_add(k, id)
  local ids = k.holders
  local count = #ids
  if count < LIMIT.HOLDERS then
    count = count + 1
    ids[count], kept.holding[id], k.holders_text = id, true, nil
  end
  return count < LIMIT.HOLDERS
end

local function holders_text(k)
  local text = concat(k.holders)
  k.holders_text = text
  return text
end

local function holder_drop(k, id)
  local ids = k.holders
  for i = 1, #ids do
    if ids[i] == id then
      table.remove(ids, i)
      k.holders_text = nil
      return
    end
  end
end

function limits.get(key)
  local k = kept.keys[key]
  if not k then
    local packed = call('HGET', KEY .. 'keys', key)
    if packed then
      local in_flight, waiting, hold, total, first_at, last_at, last, round, counted, lane_round, lane_counted, holders, from =
        unpack_struct(KEY_STATE, packed)
      k = {
        key = key, in_flight = in_flight, waiting = waiting, hold = hold, total = total, first_at = first_at, last_at = last_at,
        last = last, round = round, counted = counted, lane_round = lane_round, lane_counted = lane_counted,
        reason = sub(packed, from + holders * JOB_ID), holders = holders_read(packed, from, holders), holders_text = nil,
        is_new = false, is_changed = false,
      }
    else
      k = {
        key = key, in_flight = 0, waiting = 0, hold = 0, total = 0, first_at = 0, last_at = 0, last = 0,
        round = U.lease_round, counted = 0, lane_round = U.lane_round, lane_counted = 0, reason = '', is_new = true,
        is_changed = false, holders = {}, holders_text = '',
      }
    end
    kept.keys[key], kept.key_count = k, kept.key_count + 1
  end
  if k.round ~= U.lease_round then settle(k, 'in_flight', 'round', 'counted', U.lease_round) end
  if k.lane_round ~= U.lane_round then settle(k, 'waiting', 'lane_round', 'lane_counted', U.lane_round) end
  return k
end

-- The window.

local PAGE = 64 -- starts read at once

local function start_read(text)
  local at, count = string.match(text, '^(%-?%d+) (%d+)$')
  return tonumber(at), tonumber(count)
end

local function is_past(rule, at)
  return U.clock - at >= rule.rate_ms or at - U.clock > rule.rate_ms
end

local function window_forget(k)
  if k.first_at ~= 0 then call('DEL', starts_key(k.key)) end
  k.total, k.first_at, k.last_at, k.last = 0, 0, 0, 0
  touch(k)
end

-- Drops starts that have left the window.
local function window_pass(k, rule)
  while k.first_at ~= 0 and is_past(rule, k.first_at) do
    local page, gone = call('LRANGE', starts_key(k.key), 0, PAGE), 0
    k.first_at = 0
    touch(k)
    for i = 1, #page do
      local at, count = start_read(page[i])
      if i > PAGE or not is_past(rule, at) then
        k.first_at = at
        break
      end
      gone, k.total = gone + 1, k.total - count
    end
    call('LTRIM', starts_key(k.key), gone, -1)
  end
  if k.first_at == 0 and k.last_at ~= 0 and is_past(rule, k.last_at) then window_forget(k) end
end

-- Time until one more may start.
local function window_wait(k, rule)
  if rule.rate < 0 then
    if k.last_at ~= 0 then window_forget(k) end
    return 0
  end
  window_pass(k, rule)
  local over, wait, from = k.total - rule.rate + 1, 0, 0
  while over > 0 and k.first_at ~= 0 do
    local page = call('LRANGE', starts_key(k.key), from, from + PAGE - 1)
    for i = 1, #page do
      local at, count = start_read(page[i])
      if over > 0 then over, wait = over - count, at + rule.rate_ms - U.clock end
    end
    from = from + PAGE
    if #page < PAGE then break end
  end
  if over > 0 then wait = k.last_at + rule.rate_ms - U.clock end
  return wait > 0 and wait or 0
end

-- The end of the step that contains a time.
local function step_end(rule, at)
  local step = rule.rate > LIMIT.STEPS and floor(rule.rate_ms / LIMIT.STEPS) or 1
  return step > 1 and floor((at + step - 1) / step) * step or at
end

local function window_add(k, rule, count)
  if rule.rate < 0 then return end
  local at = step_end(rule, U.clock)
  k.total = k.total + count
  touch(k)
  if k.last_at >= at then
    k.last = k.last + count
    return
  end
  if k.last_at ~= 0 then
    call('RPUSH', starts_key(k.key), string.format('%.0f %.0f', k.last_at, k.last))
    if k.first_at == 0 then k.first_at = k.last_at end
  end
  k.last_at, k.last = at, count
end

-- Removes the start at that time, if present; returns whether it was.
local function window_undo(k, rule, at)
  at = step_end(rule, at)
  if k.last_at == at and k.last > 0 then
    k.last, k.total = k.last - 1, k.total - 1
    touch(k)
    return true
  end
  local to = -1
  while k.first_at ~= 0 and k.last_at > at do
    local page = call('LRANGE', starts_key(k.key), to - PAGE + 1, to)
    for i = #page, 1, -1 do
      local its, count = start_read(page[i])
      if its < at then return false end
      if its == at and count > 0 then
        call('LSET', starts_key(k.key), to - #page + i, string.format('%.0f %.0f', at, count - 1))
        k.total = k.total - 1
        touch(k)
        return true
      end
    end
    if #page < PAGE then return false end
    to = to - PAGE
  end
  return false
end

-- Why no more may start, checked in this order. nil: one may.
local function check(k)
  local rule = rule_of(k.key)
  if k.hold > U.clock then return {why = WHY.HELD, limit = 0, used = 0, retry = k.hold - U.clock} end
  if rule.concurrency >= 0 and k.in_flight >= rule.concurrency then
    return {why = WHY.CONCURRENCY, limit = rule.concurrency, used = k.in_flight, retry = 0}
  end
  local wait = window_wait(k, rule)
  if wait > 0 then return {why = WHY.RATE, limit = rule.rate, used = k.total, retry = wait} end
  return nil
end

local function first_block(demand, look)
  if demand == '' then return nil end
  local keys = demands.parse(demand).keys
  for i = 1, #keys do
    local block = look(limits.get(keys[i]))
    if block then
      block.key = i - 1
      return block
    end
  end
  return nil
end

-- What blocks a job with this demand from starting; nil: nothing.
function limits.block(demand)
  return first_block(demand, check)
end

-- What blocks it from waiting; nil: nothing.
function limits.queue_block(demand)
  return first_block(demand, function(k)
    local rule = rule_of(k.key)
    if rule.queue < 0 or k.waiting < rule.queue then return nil end
    return {why = WHY.QUEUE, limit = rule.queue, used = k.waiting, retry = 0}
  end)
end

function limits.block_text(block)
  return pack('<BBi4i4i6', block.why, block.key, block.limit, block.used, block.retry)
end

local function each(j, visit)
  if j.demand == '' then return end
  local keys = demands.keys(j)
  for i = 1, #keys do
    local k = limits.get(keys[i])
    visit(k)
    touch(k)
  end
end

local function mark_of(round)
  return round % 255 + 1
end

-- Was it counted in this round? Marks it as counted.
local function count_in(j, round)
  local mark = mark_of(round)
  local is_counted = j.counted == mark
  j.counted = mark
  return is_counted
end

-- For identical jobs, see columns.lua. Between two verbs only the steps change anything, so the keys of a demand are
-- checked once for all jobs: is any job waiting for one of them, and, when the first one starts, is there room for as
-- many as may come? Then the steps only count, and limits.gate_close() updates the keys.
local gates = {count = 0} -- those that are open: demands
local gate_round = 0 -- demands with this round know their keys and rules: only the steps changed anything since

-- Called before a verb, and when keys are forgotten: demands look up their keys again.
function limits.gate_forget()
  gate_round = gate_round + 1
end

local function has_room(k, rule, more)
  if k.hold > U.clock or (rule.concurrency >= 0 and k.in_flight + more > rule.concurrency) then return false end
  return window_wait(k, rule) == 0 and (rule.rate < 0 or k.total + more <= rule.rate)
end

-- `bounded`: keys that have a limit of concurrency, nil: none has.
local function gate_look(d)
  local keys, gated, rules, is_awaited, bounded = d.keys, d.gated, d.rules, false, nil
  for i = 1, #keys do
    local k, rule = limits.get(keys[i]), rule_of(keys[i])
    gated[i], rules[i] = k, rule
    is_awaited = is_awaited or k.waiting > 0
    if rule.concurrency >= 0 then
      bounded = bounded or {}
      bounded[#bounded + 1] = k
    end
  end
  d.is_awaited, d.bounded, d.gate_round, d.full_round = is_awaited, bounded, gate_round, 0
end

function limits.gate_open(d)
  if d.gate_round ~= gate_round then gate_look(d) end
  d.is_gated, d.is_asked, d.starts, d.stops, d.uncounted = true, false, 0, 0, 0
  if #d.gated > 0 then
    gates.count = gates.count + 1
    gates[gates.count] = d
  end
end

-- May this one start? Is there room for all that may come, the demand `is_open`, and the others need not ask.
function limits.may_start(d, more)
  if not d.is_gated then limits.gate_open(d) end
  local gated, rules, is_open = d.gated, d.rules, not d.is_asked
  for i = 1, #gated do is_open = is_open and has_room(gated[i], rules[i], more) end
  d.is_asked, d.is_open = true, is_open
  if is_open then return true end
  for i = 1, #gated do
    if check(gated[i]) then return false end
  end
  return true
end

-- This many started and stopped; the audit has not reached `uncounted` of them.
local function passed(d, starts, stops, uncounted)
  local gated, rules = d.gated, d.rules
  for i = 1, #gated do
    local k, rule = gated[i], rules[i]
    local in_flight, counted = k.in_flight + starts - stops, k.counted + starts - stops + uncounted
    k.in_flight, k.counted = in_flight > 0 and in_flight or 0, counted > 0 and counted or 0
    if starts > 0 and rule.rate >= 0 then window_add(k, rule, starts) end
    if not k.is_changed then touch(k) end
  end
end

function limits.start(d)
  passed(d, 1, 0, 0)
end

-- A job that begins is one of the holders of its keys, until they have enough: `full_round` is that of the caller then,
-- who begins another round when a holder ends.
function limits.hold_all(d, id, round)
  local bounded, is_full = d.bounded, true
  if bounded then
    for i = 1, #bounded do
      if holder_add(bounded[i], id) then is_full = false end
    end
  end
  if is_full then d.full_round = round end
end

-- A holder ends.
function limits.drop_all(d, id)
  local gated = d.gated
  for i = 1, #gated do holder_drop(gated[i], id) end
  kept.holding[id] = nil
end

function limits.gate_close()
  for i = 1, gates.count do
    local d = gates[i]
    gates[i], d.is_gated, d.is_open = nil, false, false
    if d.starts > 0 or d.stops > 0 then passed(d, d.starts, d.stops, d.uncounted) end
  end
  gates.count = 0
end

-- The open gates are from a batch that did not complete.
function limits.gate_drop()
  limits.gate_forget()
  for i = 1, gates.count do gates[i].is_gated, gates[i].is_open, gates[i] = false, false, nil end
  gates.count = 0
end

function limits.mark()
  return mark_of(U.lease_round)
end

-- Its lease begins.
function limits.begin(j)
  if j.demand == '' then return end
  each(j, function(k)
    local rule = rule_of(k.key)
    k.in_flight, k.counted = k.in_flight + 1, k.counted + 1
    if rule.concurrency >= 0 then holder_add(k, j.id) end
    window_add(k, rule, 1)
  end)
  count_in(j, U.lease_round)
end

local function less(k, count, counted, is_counted)
  if k[count] > 0 then k[count] = k[count] - 1 end
  if is_counted and k[counted] > 0 then k[counted] = k[counted] - 1 end
end

function limits.finish(j)
  if j.demand == '' then return end
  local is_counted = j.counted == mark_of(U.lease_round)
  each(j, function(k)
    less(k, 'in_flight', 'counted', is_counted)
    holder_drop(k, j.id)
    U.eased[k.key] = true
  end)
  kept.holding[j.id] = nil
end

local MOVES_MAX = 32 -- of the steady clock, that are remembered

-- The steady clock is about to move: records how far Redis' clock was ahead of it, from when to when.
function limits.note_move()
  call('LPUSH', KEY .. 'moves', string.format('%.0f %.0f %.0f', U.offset_since, U.last, U.offset))
  call('LTRIM', KEY .. 'moves', 0, MOVES_MAX - 1)
end

-- The possible steady times of a time on Redis' clock: by the current offset, or by those between earlier moves. Newest
-- first.
local function steady_moments(ms)
  local moments = {}
  if ms >= U.offset_since and ms <= U.now then moments[1] = ms - U.offset end
  local moves = U.offset_since > 0 and call('LRANGE', KEY .. 'moves', 0, -1) or {}
  for i = 1, #moves do
    local since, till, offset = string.match(moves[i], '^(%-?%d+) (%-?%d+) (%-?%d+)$')
    if since and ms >= tonumber(since) and ms <= tonumber(till) then moments[#moments + 1] = ms - tonumber(offset) end
  end
  return moments
end

-- It never started. Its dispatch time is not on the steady clock, which may have moved since. If the clock was set back
-- there are several candidates: the start is at one of them.
function limits.undo(j)
  local moments
  each(j, function(k)
    local rule = rule_of(k.key)
    if rule.rate < 0 then return end
    moments = moments or steady_moments(j.dispatched)
    for i = 1, #moments do
      if window_undo(k, rule, moments[i]) then return end
    end
  end)
end

function limits.enter(j)
  if j.demand == '' then return end
  each(j, function(k) k.waiting, k.lane_counted = k.waiting + 1, k.lane_counted + 1 end)
  count_in(j, U.lane_round)
end

function limits.leave(j)
  if j.demand == '' then return end
  local is_counted = j.counted == mark_of(U.lane_round)
  each(j, function(k) less(k, 'waiting', 'lane_counted', is_counted) end)
end

-- The audit reaches a lease, or a job in a lane.
function limits.count_lease(j)
  if j.demand == '' or #demands.keys(j) == 0 or count_in(j, U.lease_round) then return end
  each(j, function(k) k.counted = k.counted + 1 end)
  job_changed(j)
end

function limits.count_waiting(j)
  if j.demand == '' or #demands.keys(j) == 0 or count_in(j, U.lane_round) then return end
  each(j, function(k) k.lane_counted = k.lane_counted + 1 end)
  job_changed(j)
end

-- Holds a key: nothing starts for a while. 0: ends the hold.
function limits.hold(key, ms, reason)
  local k = limits.get(key)
  if ms == 0 and k.hold == 0 then return end
  k.hold, k.reason = ms > 0 and later(U.clock, ms) or 0, ms > 0 and reason or ''
  touch(k)
  if ms == 0 then U.eased[key] = true end
end

function limits.hold_longer(key, ms, reason)
  if ms > LIMIT.HOLD_MS then ms = LIMIT.HOLD_MS end
  if ms > 0 and U.clock + ms > limits.get(key).hold then limits.hold(key, ms, reason) end
end

-- Returns those of these keys that have a waiting job which could start now.
local function ready(keys)
  local list = {}
  for i = 1, #keys do
    local k = limits.get(keys[i])
    if k.waiting > 0 and not check(k) then list[#list + 1] = keys[i] end
  end
  return list
end

function limits.freed(j)
  return j.demand ~= '' and ready(demands.keys(j)) or {}
end

local function is_used(k)
  return k.in_flight > 0 or k.waiting > 0 or k.hold > U.clock or k.total > 0
end

local KEPT_MAX = 4096 -- keys kept from batch to batch

local function forget(k)
  kept.keys[k.key] = nil
  limits.gate_forget()
  if k.first_at ~= 0 then call('DEL', starts_key(k.key)) end
  call('HDEL', KEY .. 'keys', k.key)
  call('ZREM', KEY .. 'keyed', k.key)
end

local TIDY_MAX = 256 -- keys one call looks at

-- Deletes unused keys, a part at a time. Returns how many counts of leases and of waiting jobs were wrong since the
-- last time.
function limits.tidy()
  local page = call('HSCAN', KEY .. 'keys', cursor_get('keys'), 'COUNT', TIDY_MAX)
  cursor_set('keys', page[1])
  for i = 1, #page[2], 2 do
    local k = limits.get(page[2][i])
    window_wait(k, rule_of(k.key))
    k.is_over = not is_used(k)
    if k.is_over then touch(k) end
  end
  local of_leases, of_waiting = repairs.in_flight, repairs.waiting
  repairs.in_flight, repairs.waiting = 0, 0
  return of_leases, of_waiting
end

local function publish(eased)
  local keys = {}
  for key in pairs(eased) do keys[#keys + 1] = key end
  keys = ready(keys)
  if #keys > 0 then call('PUBLISH', KEY .. 'freed', U.gen .. ' ' .. concat(keys, ' ')) end
end

-- The keys of this batch must be in the list, too.
function limits.write_new()
  local new, add = kept.new_keys, {}
  if #new == 0 then return end
  for i = 1, #new do add[2 * i - 1], add[2 * i], new[i].is_new = 0, new[i].key, false end
  kept.new_keys = {}
  call_in_parts('ZADD', KEY .. 'keyed', add, 2)
end

local set = {} -- reused by later batches so that it need not grow again

function limits.write()
  local eased = rawget(U, 'eased')
  if eased then publish(eased) end
  limits.write_new()
  local dirty, size = kept.dirty_keys, 0
  for i = 1, #dirty do
    local k = dirty[i]
    k.is_changed = false
    if k.is_over and not is_used(k) then
      forget(k)
    else
      local state = pack(KEY_STATE, k.in_flight, k.waiting, k.hold, k.total, k.first_at, k.last_at, k.last, k.round, k.counted,
        k.lane_round, k.lane_counted, #k.holders)
      set[size + 1] = k.key
      size = size + 2
      set[size] = state .. (k.holders_text or holders_text(k)) .. k.reason
    end
  end
  if size > 0 then call_in_parts('HSET', KEY .. 'keys', set, 2, size) end
  kept.dirty_keys = {}
  if kept.key_count > KEPT_MAX then
    kept.keys, kept.holding, kept.key_count = {}, {}, 0
    limits.gate_forget()
  end
end

local function rules_changed()
  U.limits_version, U.limits_at = U.limits_version + 1, U.instance .. ' ' .. U.order .. ' ' .. U.now
  rules_at = nil
  call('PUBLISH', KEY .. 'rules', U.gen)
end

local ID = '[%w_:@-][%w._:@-]*'

-- A key of a namespace other than `default` has it as a prefix.
local function is_key(text)
  return #text <= LIMIT.KEY and (find(text, '^' .. ID .. '$') or find(text, '^' .. ID .. '/' .. ID .. '$')) ~= nil
end

local function is_pattern(text)
  if sub(text, -1) ~= '*' then return is_key(text) end
  local start = sub(text, 1, -2)
  return start == '' or is_key(start) or (sub(start, -1) == '/' and find(start, '^' .. ID .. '/$') ~= nil)
end

function verbs.A(op)
  if not is_pattern(op.pattern) then return {ERR.BAD_FIELD, false, false} end
  local had = call('HGET', KEY .. 'limits', op.pattern)
  if op.drop and not had then return {ERR.NOT_FOUND, false, false} end
  if not op.drop and not had and call('HLEN', KEY .. 'limits') >= LIMIT.RULES then return {ERR.CONFLICT, false, false} end
  if op.drop then
    call('HDEL', KEY .. 'limits', op.pattern)
  else
    call('HSET', KEY .. 'limits', op.pattern, op.limit)
  end
  rules_changed()
  return {ERR.OK, false, false}
end

function verbs.H(op)
  if not is_key(op.pattern) or op.hold < 0 or op.hold > LIMIT.HOLD_MS or #op.reason > LIMIT.KEY_REASON then
    return {ERR.BAD_FIELD, false, false}
  end
  limits.hold(op.pattern, op.hold, op.reason)
  return {ERR.OK, false, false}
end

local function key_answer(k)
  local rule = rule_of(k.key)
  window_wait(k, rule)
  if not is_used(k) then return nil end
  local held = k.hold > U.clock
  return {k.key, rule.pattern, k.in_flight, k.waiting, k.total, held and k.hold - U.clock or 0, held and k.reason or '',
    holders_text(k)}
end

local LOOK_MAX = 4096 -- keys checked per call besides those returned

-- Up to `max` keys after `after`, and whether there are more. Unused ones are skipped.
local function keys_page(op)
  local list, from, looked = {}, '[' .. op.prefix, 0
  if op.after >= op.prefix and op.after ~= '' then from = '(' .. op.after end
  while looked <= op.max + LOOK_MAX do
    local count = op.max - #list + 1
    local page = call('ZRANGEBYLEX', KEY .. 'keyed', from, '[' .. op.prefix .. '\255', 'LIMIT', 0, count)
    for i = 1, #page do
      local told = key_answer(limits.get(page[i]))
      if told and #list == op.max then return list, 1 end
      if told then list[#list + 1] = told end
      from = '(' .. page[i]
    end
    if #page < count then return list, 0 end
    looked = looked + count
  end
  return list, 1
end

function verbs.Q(op)
  local keys, more = {}, 0
  limits.write_new()
  if op.max > 0 then keys, more = keys_page(op) end
  return {ERR.OK, false, false, U.limits_version + 1, call('HGETALL', KEY .. 'limits'), keys, more}
end

end
