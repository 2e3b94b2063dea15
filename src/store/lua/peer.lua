-- What instances tell each other: words, whose connection a node is, which nodes they heard of.
do

-- A word to one instance, or to all (''). Answers how many took it: nobody is there when that is none.
-- Channels know no database, so what is for all names the generation it is about.
function verbs.S(op)
  if op.to == '' then
    return {ERR.OK, false, false, call('PUBLISH', KEY .. 'all', U.gen .. ' ' .. op.text)}
  end
  return {ERR.OK, false, false, call('PUBLISH', KEY .. 'i:' .. op.to, op.text)}
end

-- "holder kind incarnation since". The last one to connect is the one that is there. Letting go counts
-- only for the connection that is let go of, and a poll takes nothing from a socket that lives.
function verbs.U(op)
  local n = node_get(op.node)
  if not (n and n.known) then return {ERR.NOT_FOUND, false, false} end
  local before = call('HGET', KEY .. 'links', op.node)
  local holder, kind, incarnation
  if before then holder, kind, incarnation = string.match(before, '^(%x+) (%d) (%d+)') end
  if op.kind == LINK.LEFT and not (holder == U.instance and incarnation == op.incarnation) then
    return {ERR.STALE, false, false}
  end
  if op.kind == LINK.POLL and tonumber(kind) == LINK.SOCKET and instances.is_live(holder) then
    return {ERR.CONFLICT, false, false}
  end
  call('HSET', KEY .. 'links', op.node,
    U.instance .. ' ' .. op.kind .. ' ' .. op.incarnation .. ' ' .. U.now)
  tell_changed(op.node)
  return {ERR.OK, false, false}
end

-- Nodes this instance heard of since it last told: when, and what they said of their load. The text goes
-- to all instances.
function verbs.E(op)
  local set = {}
  for i = 1, #op.seen, 2 do
    local n = node_get(op.seen[i])
    if n and n.known then
      set[#set + 1] = op.seen[i]
      set[#set + 1] = U.now .. ' ' .. op.seen[i + 1]
    end
  end
  if #set > 0 then call_in_parts('HSET', KEY .. 'live', set, 2) end
  if op.text ~= '' then call('PUBLISH', KEY .. 'all', U.gen .. ' ' .. op.text) end
  return {ERR.OK, false, false}
end

-- The right to deliver a job's callback, for some time: "holder until".
function verbs.V(op)
  local j = job_get(op.job)
  if not j or j.callback ~= CALLBACK.PENDING then return {ERR.NOT_FOUND, false, false} end
  local kept = call('HGET', KEY .. 'claims', op.job)
  local holder, until_ms
  if kept then holder, until_ms = string.match(kept, '^(%x+) (%d+)$') end
  if holder and holder ~= U.instance and tonumber(until_ms) > U.now then
    return {ERR.CONFLICT, head_of(j), false}
  end
  call('HSET', KEY .. 'claims', op.job, U.instance .. ' ' .. later(U.now, op.hold))
  return {ERR.OK, head_of(j), false}
end

end
