-- What instances share: messages, which instance has a node's connection, and heartbeats.
do

-- Sends a message to one instance, or to all (''). Returns how many received it; 0: none present. Channels are not per
-- database, so messages to all include the generation.
function verbs.S(op)
  if op.to == '' then
    return {ERR.OK, false, false, call('PUBLISH', KEY .. 'all', U.gen .. ' ' .. op.text)}
  end
  return {ERR.OK, false, false, call('PUBLISH', KEY .. 'i:' .. op.to, op.text)}
end

-- "holder kind incarnation since". The latest connection wins. A disconnect counts only for the stored connection, and
-- a poll does not replace a live socket.
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

-- Heartbeats this instance received since its last report: when, and the reported load. The text goes to all instances.
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
