-- Breakers, as in model/breaker.c and store/breakers.c: one for each node x type that failed recently. A probe is tied
-- to the lease of its job.
local breaker_allows, breaker_probe, breaker_settle, breakers_tidy, write_gates
do
local CLOSED, OPEN, HALF_OPEN = BREAKER.CLOSED, BREAKER.OPEN, BREAKER.HALF_OPEN

local function gate_read(key, text)
  local state, failures, opened, changed, probe =
    string.match(text, '^(%d+),(%d+),(%-?%d+),(%-?%d+),(.*)$')
  return {
    key = key, state = tonumber(state), failures = tonumber(failures), opened = tonumber(opened),
    changed = tonumber(changed), probe = probe,
  }
end

local function gate_text(g)
  return g.state .. ',' .. g.failures .. ',' .. g.opened .. ',' .. g.changed .. ',' .. g.probe
end

local function gate_of(key)
  local g = U.gates[key]
  if g == nil then
    local text = call('HGET', KEY .. 'breakers', key)
    g = text and gate_read(key, text) or false
    U.gates[key] = g
  end
  return g or nil
end

-- Common case, no breakers: a dispatch costs nothing.
local function gate_find(node, type)
  if U.threshold == 0 or U.gate_count == 0 or type == '' or #type > LIMIT.TYPE then return nil end
  return gate_of(node .. '|' .. type)
end

local function gate_write(g)
  U.dirty_gates[g.key] = g
end

-- Its state now: half open once the cooldown has passed.
local function gate_state(g)
  if g.state ~= OPEN then return g.state end
  if g.opened > U.now then
    g.opened = U.now -- the clock was set back: the cooldown must still end
    gate_write(g)
  end
  if U.now - g.opened >= U.cooldown then
    g.state = HALF_OPEN
    gate_write(g)
  end
  return g.state
end

function probe_release(j)
  if not j.probe then return end
  local g = gate_of(j.node .. '|' .. j.type)
  if g then
    g.probe = ''
    gate_write(g)
  end
  j.probe = false
  job_changed(j)
end

local function gate_forget(g)
  if g.probe ~= '' then
    local j = job_get(g.probe)
    if j then probe_release(j) end
  end
  if g.counted then U.open_count = U.open_count - 1 end
  U.gate_count, U.gates_moved = U.gate_count - 1, true
  U.gates[g.key] = false
  U.dirty_gates[g.key] = false
end

local function gate_add(node, type)
  if U.gate_count >= LIMIT.BREAKERS then
    local key = call('HRANDFIELD', KEY .. 'breakers')
    local old = key and gate_of(key)
    if old then
      old.counted = old.state ~= CLOSED
      gate_forget(old)
    end
  end
  local g = {
    key = node .. '|' .. type, state = CLOSED, failures = 0, opened = 0, changed = U.now,
    probe = '',
  }
  U.gates[g.key] = g
  U.gate_count, U.gates_moved = U.gate_count + 1, true
  return g
end

local function gate_open(g)
  g.state, g.opened = OPEN, U.now
end

local function gate_reset(g)
  g.state, g.failures, g.opened = CLOSED, 0, 0
end

local function gate_fail(g)
  local state = gate_state(g)
  g.failures = g.failures + 1
  if state == HALF_OPEN then
    if g.failures >= U.threshold * 2 then g.failures = U.threshold * 2 end
    gate_open(g)
    return EVENT.PROBE_FAILED
  end
  if state == OPEN or g.failures < U.threshold then return EVENT.NONE end
  gate_open(g)
  return EVENT.TRIPPED
end

local function gate_ok(g)
  local state = gate_state(g)
  if state == OPEN then return EVENT.NONE end -- begun before it opened; only a probe closes it
  gate_reset(g)
  return state == HALF_OPEN and EVENT.RECOVERED or EVENT.NONE
end

-- `was_open`: before the change, to keep the count of open ones.
local function gate_changed(g, was_open)
  local open = g.state ~= CLOSED
  U.open_count = U.open_count + (open and 1 or 0) - (was_open and 1 or 0)
  g.counted = open
  g.changed = U.now
  if not open and g.failures == 0 then gate_forget(g) else gate_write(g) end
end

-- May work of this type go to this node? The second result: the job would be the probe of this breaker. The last node
-- of a pool is never blocked entirely: it gets one job at a time.
function breaker_allows(node, type, last)
  local g = gate_find(node, type)
  if not g then return true end
  if g.probe ~= '' then return false end
  local state = gate_state(g)
  if state == OPEN and last then
    g.state = HALF_OPEN
    state = HALF_OPEN
  end
  if state == OPEN then return false end
  return true, state == HALF_OPEN and g or nil
end

function breaker_probe(g, j)
  g.probe, j.probe = j.id, true
  job_changed(j)
  gate_changed(g, true)
end

-- In the half-open state only the probe decides, not attempts that began before it opened.
local function may_speak(g, j, was_probe)
  if was_probe or gate_state(g) ~= HALF_OPEN then return true end
  return g.probe == '' and j.dispatched >= g.opened
end

-- Its attempt ended; the job still has its node.
function breaker_settle(j, word)
  local was_probe = j.probe
  local g = gate_find(j.node, j.type)
  probe_release(j)
  if not g and word == 'bad' and U.threshold > 0 and j.type ~= '' then g = gate_add(j.node, j.type) end
  if not g or not may_speak(g, j, was_probe) then return EVENT.NONE end
  local was_open = g.state ~= CLOSED
  local event = EVENT.NONE
  if word == 'good' then event = gate_ok(g) elseif word == 'bad' then event = gate_fail(g) end
  if was_probe or event ~= EVENT.NONE or word == 'bad' or g.failures == 0 then
    gate_changed(g, was_open)
  end
  return event
end

function write_gates()
  local set, del = {}, {}
  for key, g in pairs(U.dirty_gates) do
    if g then
      set[#set + 1] = key
      set[#set + 1] = gate_text(g)
    else
      del[#del + 1] = key
    end
  end
  if #set > 0 then call_in_parts('HSET', KEY .. 'breakers', set, 2) end
  if #del > 0 then call_in_parts('HDEL', KEY .. 'breakers', del) end
  U.dirty_gates = nil
end

-- The nodes that have breakers: jobs for them are left to the verbs. With more than a few, they are not looked up.
local GATED_MAX = 256

function columns.may_be_gated()
  return U.gate_count <= GATED_MAX
end

function columns.gated()
  if U.gate_count == 0 or not columns.may_be_gated() then return nil end
  if U.gates_moved then
    write_gates()
    kept.gated, U.gates_moved = nil, false
  end
  if not kept.gated then
    kept.gated = {}
    for _, key in ipairs(call('HKEYS', KEY .. 'breakers')) do
      kept.gated[sub(key, 1, find(key, '|', 1, true) - 1)] = true
    end
  end
  return kept.gated
end

function cursor_get(name)
  return call('HGET', KEY .. 'meta', name .. '_at') or '0'
end

function cursor_set(name, value)
  call('HSET', KEY .. 'meta', name .. '_at', value)
end

-- Drops breakers of nodes that are gone and did not return for a whole cooldown; a part at a time.
function breakers_tidy()
  if U.threshold == 0 or U.gate_count == 0 then return end
  local page = call('HSCAN', KEY .. 'breakers', cursor_get('gates'), 'COUNT', 256)
  cursor_set('gates', page[1])
  for i = 1, #page[2], 2 do
    local g = gate_of(page[2][i])
    local n = g and node_get(sub(g.key, 1, find(g.key, '|', 1, true) - 1))
    if g and U.now - g.changed >= U.cooldown and g.probe == '' and not (n and n.known) then
      g.counted = g.state ~= CLOSED
      gate_forget(g)
    end
  end
end

function verbs.B()
  local answer = {ERR.OK, false, false}
  if U.threshold == 0 then return answer end
  write_gates()
  local all = call('HGETALL', KEY .. 'breakers')
  for i = 1, #all, 2 do
    local g = gate_read(all[i], all[i + 1])
    local j = g.probe ~= '' and job_get(g.probe)
    if g.state == OPEN and U.now - g.opened >= U.cooldown then g.state = HALF_OPEN end
    answer[#answer + 1] = g.state .. ',' .. g.failures .. ',' .. g.opened .. ',' ..
      (j and (j.due < FOREVER and j.due + U.offset or j.due) or 0) .. ',' .. g.key
  end
  return answer
end

function verbs.Z(op)
  local g = gate_find(op.node, op.type)
  if not g then return {ERR.NOT_FOUND, false, false} end
  local was_open = g.state ~= CLOSED
  if g.probe ~= '' then
    local j = job_get(g.probe)
    if j then probe_release(j) end
  end
  gate_reset(g)
  gate_changed(g, was_open)
  return {ERR.OK, false, false}
end

end
