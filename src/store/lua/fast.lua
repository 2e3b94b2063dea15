-- The three steps of nearly every job, on the packed records as they are: a new job that its first
-- candidate takes, its ACK, its DONE. Each makes sure that nothing is out of the ordinary, else it
-- answers nil, having changed nothing, and the verb itself decides (it answers the records of
-- the node and of the job). What is right is written there;
-- here is only what is fast. Tables and numbers cost more than all the rest, hence the text work.
local fast = {} -- by letter, see batch.lua
local ZERO = '\0\0\0\0\0\0' -- no time

local function moment(ms)
  return pack('<i6', ms)
end

do
local CLOSING = '\0\0\0\2' -- no ran_out, no probe, AT_NOWHERE, TOLD_DONE
local OPENING = '\0\0\3\0' -- no ran_out, no probe, AT_WHEEL, nothing told
local small = {} -- whole numbers, packed

local function int4(value)
  local text = small[value]
  if not text then
    text = pack('<i4', value)
    if value < 65536 then small[value] = text end
  end
  return text
end

-- What both became, for those that follow and for Redis.
local function put_both(id, packed, node, n)
  local row, nodes = row_of(id), U.node_row
  local at, to = #row, #nodes
  U.raw[id], U.raw_nodes[node] = packed, n
  row[at + 1], row[at + 2] = id, packed
  nodes[to + 1], nodes[to + 2] = node, n
  return row
end

-- What all jobs with this time to live have in common in this batch.
local function term_of(ttl)
  local due = later(U.now, unpack_struct('<i8', ttl))
  if tick_of(due) <= U.wheel_at or due > U.now + WHEEL_FAR_MS then return nil end
  local now, text = moment(U.now), moment(due)
  local term = {
    head = '\3\1\1' .. OPENING .. now .. ZERO .. text .. ZERO .. ZERO .. text .. now .. now,
    list = wheel_list(due),
  }
  U.terms[ttl] = term
  return term
end

function fast.R(op, pos)
  local id, len = sub(op, 2, 15), byte(op, 51)
  local node = sub(op, 52, 51 + len)
  local n = U.raw_nodes[node]
  if U.raw[id] ~= false or U.jobs[id] ~= nil or not n or U.nodes[node] ~= nil or
    U.gate_count > 0 or U.now >= U.ripe or U.now < U.recover_until or byte(n, 1) ~= HEALTH.READY or byte(n, 20) ~= 1 then
    return nil
  end
  local max, reserved, running = unpack_struct('<i4i4i4', n, 2)
  local not_after, spare = unpack_struct('<i8i4', op, 17)
  if (not_after > 0 and U.now > not_after) or max <= 0 or running + reserved >= max - spare then
    return nil
  end
  local ttl = sub(op, 29, 36)
  local term = U.terms[ttl] or term_of(ttl)
  if not term then return nil end
  local at = 52 + len
  local packed = term.head .. sub(n, 14, 17) .. sub(op, 37, 50) .. node ..
    sub(op, at + 1, at + byte(op, at))
  n = sub(n, 1, 5) .. int4(reserved + 1) .. sub(n, 10) .. ' ' .. id
  local row = put_both(id, packed, node, n)
  row[#row + 1] = id .. ':s'
  row[#row + 1] = A[pos + 1]
  term.list[#term.list + 1] = id
  job_listed(id)
  U.active = U.active + 1
  if byte(op, 16) == 2 then note_session(A[pos + 2], A[pos + 3], A[pos + 4]) end
  return n, packed
end

-- What an ACK makes of the times of a job: updated, ended, due, acked, run_until.
local function times_of(terms, timeout)
  local ttl, grace = unpack_struct('<i8i8', terms)
  local due, run_until, limit = later(U.now, ttl), 0, unpack_struct('<i6', timeout)
  if limit > 0 then
    run_until = later(later(U.now, limit), grace)
    if due > run_until then due = run_until end
  end
  local now = moment(U.now)
  local times = {due = due, text = now .. ZERO .. moment(due) .. now .. moment(run_until)}
  U.times[terms .. timeout] = times
  return times
end

-- Both ends of a run: the record of the job and that of its node, if all is as it should be.
local function run_of(op, from, state_lease)
  local id, node = sub(op, 2, 15), sub(op, from)
  local packed, n = U.raw[id], U.raw_nodes[node]
  if not packed or not n or U.jobs[id] ~= nil or U.nodes[node] ~= nil then return nil end
  local len = #node
  if sub(packed, 1, 7) ~= state_lease .. sub(op, 25, 25) .. OPENING or
    sub(packed, 74, 73 + len) ~= node or byte(packed, 74 + len) ~= 0 or
    sub(packed, 56, 59) ~= sub(n, 14, 17) then
    return nil
  end
  local not_after, due = unpack_struct('<i8', op, 17), unpack_struct('<i6', packed, 20)
  if due <= U.now or (not_after > 0 and U.now > not_after) then return nil end
  return id, packed, node, n, due
end

function fast.C(op)
  local id, packed, node, n, due = run_of(op, 46, '\3\1')
  if not id then return nil end
  local terms, timeout = sub(op, 29, 44), sub(packed, 60, 65)
  local times = U.times[terms .. timeout] or times_of(terms, timeout)
  local reserved, running = unpack_struct('<i4i4', n, 6)
  if times.due < due or reserved < 1 then return nil end
  n = sub(n, 1, 5) .. int4(reserved - 1) .. int4(running + 1) .. sub(n, 14)
  packed = '\4\2' .. sub(packed, 3, 7) .. times.text .. sub(packed, 38)
  put_both(id, packed, node, n)
  return n, packed
end

function fast.F(op, pos)
  local id, packed, node, n = run_of(op, 48, '\4\2')
  if not id or U.gate_count > 0 or byte(packed, 71) ~= CALLBACK.NONE or byte(n, 20) ~= 1 then
    return nil
  end
  local running = unpack_struct('<i4', n, 10)
  local at = find(n, id, 38, true)
  if running < 1 or not at then return nil end
  packed = '\6\0' .. sub(packed, 3, 3) .. CLOSING .. U.ending .. sub(packed, 26)
  if byte(op, 30) == 1 then packed = packed .. A[pos + 1] end
  n = sub(n, 1, 9) .. int4(running - 1) .. sub(n, 14, at - 2) .. sub(n, at + 14)
  put_both(id, packed, node, n)
  U.active = U.active - 1
  return n, packed
end

end
