-- What a job takes beside its slot, and what nodes have of it: model/demand.c and model/resources.c.
do

-- What is known by a text outlives the batch; so many of them, then it begins anew.
local CACHED_MAX = 512

local function cached(parse)
  local known, count = {}, 0
  return function(text)
    local value = known[text]
    if not value then
      if count == CACHED_MAX then known, count = {}, 0 end
      value = parse(text)
      known[text], count = value, count + 1
    end
    return value
  end
end

-- "SLOTS GPUS VRAM NAME=AMOUNT,... KEY,..."; '' is one slot. `is_more`: it needs something beside slots.
demands.parse = cached(function(text)
  local slots, gpus, vram, needs, keys = string.match(text, '^(%d+) (%d+) (%d+) (%S*) (%S*)$')
  local d = {
    text = text, slots = tonumber(slots or 1), gpus = tonumber(gpus or 0), vram = tonumber(vram or 0), needs = {}, keys = {},
    is_more = false,
  }
  for name, amount in string.gmatch(needs or '', '([^=,]+)=(%d+)') do
    d.needs[#d.needs + 1] = {name = name, amount = tonumber(amount)}
  end
  for key in string.gmatch(keys or '', '[^,]+') do d.keys[#d.keys + 1] = key end
  d.is_more = #d.needs > 0 or d.gpus > 0 or d.vram > 0
  return d
end)

function demands.slots(j)
  return j.demand == '' and 1 or demands.parse(j.demand).slots
end

function demands.keys(j)
  return demands.parse(j.demand).keys
end

-- What its lease holds of its node, by name: `#ID` is memory of a GPU that is shared, `!ID` a whole one.
function demands.takes(j)
  local d = demands.parse(j.demand)
  if j.gpus == '' then return d.needs end
  local takes = {}
  for i = 1, #d.needs do takes[i] = d.needs[i] end
  for id in string.gmatch(j.gpus, '%d+') do
    takes[#takes + 1] = d.gpus > 0 and {name = '!' .. id, amount = 1} or {name = '#' .. id, amount = d.vram}
  end
  return takes
end

-- "NAME=CAPACITY/USABLE,... ID=VRAM/USABLE,...": what can be given away of each, in order.
local shape_of = cached(function(text)
  local items, gpus = string.match(text, '^(%S*) (%S*)$')
  local shape = {items = {}, by_name = {}, gpus = {}, format = ''}
  for name, capacity, usable in string.gmatch(items or '', '([^=,]+)=(%d+)/(%d+)') do
    local item = {name = name, most = math.min(tonumber(capacity), tonumber(usable))}
    shape.items[#shape.items + 1], shape.by_name[name] = item, item
  end
  for id, vram, usable in string.gmatch(gpus or '', '(%d+)=(%d+)/(%d+)') do
    shape.gpus[#shape.gpus + 1] = {
      id = tonumber(id), shared = '#' .. id, whole = '!' .. id, vram = tonumber(vram),
      most = math.min(tonumber(vram), tonumber(usable)),
    }
  end
  shape.format = '<BBI4' .. string.rep('i4', #shape.items + #shape.gpus)
  return shape
end)

-- `r` has of each node what it declares, a zero, names, a zero, and what its leases hold of each of these: reserved, and running. That
-- goes on counting when the node does not declare it any more. `stocked` of a node: there may be such a field. In memory the
-- sums are a list, two for each name; `at` has where those of a name begin. They are kept from batch to batch.
local function stock_new(declared)
  return {text = declared, names = {}, at = {}, sums = {}, head = nil, format = nil, shape = nil, left = nil}
end

-- Where the sums of a name are.
local function place_of(s, name)
  local i = s.at[name]
  if not i then
    i = #s.sums + 1
    s.at[name], s.sums[i], s.sums[i + 1], s.names[#s.names + 1], s.head = i, 0, 0, name, nil
  end
  return i
end

local function stock_read(text)
  local declared, names, from = unpack_struct('ss', text)
  local s = stock_new(declared)
  for name in string.gmatch(names, '[^,]+') do
    local reserved, running
    reserved, running, from = unpack_struct('<i4i4', text, from)
    if reserved > 0 or running > 0 then
      local i = place_of(s, name)
      s.sums[i], s.sums[i + 1] = reserved, running
    end
  end
  return s
end

-- nil: it has none.
function resources.of(n)
  local s = kept.stocks[n.id]
  if s == nil then
    local text = n.stocked and call('HGET', KEY .. 'r', n.id)
    s = text and stock_read(text) or false
    kept.stocks[n.id] = s
  end
  return s or nil
end

local function changed(n, s)
  s.left, kept.dirty_stocks[n.id] = nil, s
end

-- What it declares from now on; answers whether that is something else.
function resources.declare(n, text)
  local s = resources.of(n)
  if (s and s.text or '') == text then return false end
  if not s then
    s = stock_new('')
    kept.stocks[n.id] = s
  end
  s.text, s.head, s.shape, n.stocked = text, nil, nil, true
  changed(n, s)
  node_changed(n)
  return true
end

local RESERVED, RUNNING = 0, 1 -- which of the two sums of a name

local function move(n, j, kind, sign)
  local s = j.demand ~= '' and resources.of(n)
  if not s then return end
  local sums, takes = s.sums, demands.takes(j)
  if #takes == 0 then return end
  for i = 1, #takes do
    local at = place_of(s, takes[i].name) + kind
    local sum = sums[at] + sign * takes[i].amount
    sums[at] = sum > 0 and sum or 0
  end
  changed(n, s)
end

function resources.take(n, j)
  move(n, j, RESERVED, 1)
end

-- Its lease is acknowledged.
function resources.run(n, j)
  move(n, j, RESERVED, -1)
  move(n, j, RUNNING, 1)
end

function resources.give(n, j)
  move(n, j, j.lease == RUNNING_LEASE and RUNNING or RESERVED, -1)
end

-- Leases of the epoch before hold nothing any more.
function resources.begin_epoch(n, keeps_runs)
  local s = resources.of(n)
  if not s then return end
  for i = 1, #s.sums, 2 do
    s.sums[i] = 0
    if not keeps_runs then s.sums[i + 1] = 0 end
  end
  changed(n, s)
end

local function left_of(s, name, most)
  local at = s.at[name]
  return at and most - s.sums[at] - s.sums[at + 1] or most
end

local function gpu_left(s, gpu)
  if left_of(s, gpu.whole, 0) < 0 then return nil end -- somebody has all of it
  return left_of(s, gpu.shared, gpu.most)
end

local function shape_get(s)
  s.shape = s.shape or shape_of(s.text)
  return s.shape
end

-- With this much memory; 0: nearly all of what it has. `left` is what gpu_left() says.
local function can_be_whole(s, gpu, left, vram)
  local wanted = vram > 0 and vram or floor(gpu.vram * LIMIT.WHOLE_PERCENT / 100)
  return left and left_of(s, gpu.shared, 0) == 0 and left >= wanted
end

-- Those with the least memory, that are free and have enough.
local function whole_fit(s, shape, d)
  local free = {}
  for _, gpu in ipairs(shape.gpus) do
    if can_be_whole(s, gpu, gpu_left(s, gpu), d.vram) then free[#free + 1] = gpu end
  end
  if #free < d.gpus then return nil end
  sort(free, function(a, b)
    if a.vram ~= b.vram then return a.vram < b.vram end
    return a.id < b.id
  end)
  local ids = {}
  for i = 1, d.gpus do ids[i] = free[i].id end
  sort(ids)
  return concat(ids, ',')
end

-- The one with the least left; but whole ones are kept whole, as long as another has enough.
local function share_fit(s, shape, d)
  local best, least, breaks
  for _, gpu in ipairs(shape.gpus) do
    local left = gpu_left(s, gpu)
    if left and left >= d.vram then
      local is_whole = can_be_whole(s, gpu, left, 0)
      if not best or (breaks and not is_whole) or (breaks == is_whole and left < least) then
        best, least, breaks = gpu, left, is_whole
      end
    end
  end
  return best and '' .. best.id
end

-- The GPUs it gets, '' if it needs none; nil when it does not fit.
function resources.fit(n, d)
  if not d.is_more then return '' end
  local s = resources.of(n)
  if not s then return nil end
  local shape = shape_get(s)
  for i = 1, #d.needs do
    local need = d.needs[i]
    local item = shape.by_name[need.name]
    if not item or left_of(s, item.name, item.most) < need.amount then return nil end
  end
  if d.gpus > 0 then return whole_fit(s, shape, d) end
  return d.vram > 0 and share_fit(s, shape, d) or d.vram == 0 and '' or nil
end

local lefts = {} -- it outlives the batch, as it would have to grow again

-- What answers tell of it: how many items and GPUs, which GPUs are shared, and what is left of each.
function resources.left_text(s)
  local text = s.left
  if text then return text end
  local shape, shared = shape_get(s), 0
  local items, gpus = shape.items, shape.gpus
  local count = #items
  for i = 1, count do lefts[i] = left_of(s, items[i].name, items[i].most) end
  for i = 1, #gpus do
    count = count + 1
    lefts[count] = gpu_left(s, gpus[i]) or LIMIT.LEFT_WHOLE
    if left_of(s, gpus[i].shared, 0) < 0 then shared = shared + 2 ^ (i - 1) end
  end
  text = count > 0 and pack(shape.format, #items, #gpus, shared, unpack_list(lefts, 1, count)) or ''
  s.left = text
  return text
end

function resources.left(n)
  local s = n.stocked and resources.of(n)
  return s and resources.left_text(s) or ''
end

-- The same for jobs that are alike, see columns.lua: those that need nothing but a slot and amounts.
function resources.has(s, needs)
  local at, sums, by_name = s.at, s.sums, shape_get(s).by_name
  for i = 1, #needs do
    local need = needs[i]
    local name = need.name
    local item, k = by_name[name], at[name]
    if not item or item.most - (k and sums[k] + sums[k + 1] or 0) < need.amount then return false end
  end
  return true
end

-- `kind` and `sign` as for move(); `other`, if it is given, gets the opposite.
function resources.shift(id, s, needs, kind, sign, other)
  local at, sums = s.at, s.sums
  for i = 1, #needs do
    local need = needs[i]
    local k, by = at[need.name] or place_of(s, need.name), sign * need.amount
    local sum = sums[k + kind] + by
    sums[k + kind] = sum > 0 and sum or 0
    if other then
      sum = sums[k + other] - by
      sums[k + other] = sum > 0 and sum or 0
    end
  end
  kept.dirty_stocks[id] = s
  if not other then s.left = nil end
end

local function is_used(s)
  for i = 1, #s.sums do
    if s.sums[i] > 0 then return true end
  end
  return false
end

local set = {} -- as lefts

function resources.write()
  local size = 0
  for id, s in pairs(kept.dirty_stocks) do
    if s.text ~= '' or is_used(s) then
      if not s.head then
        s.head = s.text .. '\0' .. concat(s.names, ',') .. '\0'
        s.format = '<' .. string.rep('i4', #s.sums)
      end
      set[size + 1], set[size + 2] = id, s.head .. pack(s.format, unpack_list(s.sums))
      size = size + 2
    else
      call('HDEL', KEY .. 'r', id)
      kept.stocks[id] = nil
    end
  end
  if size > 0 then call_in_parts('HSET', KEY .. 'r', set, 2, size) end
  kept.dirty_stocks = {}
end

-- The audit has counted these sums. Answers how many were others.
function resources.put_right(n, reserved, running)
  local s, wrong = resources.of(n), 0
  if not s then return 0 end
  for name in pairs(reserved) do place_of(s, name) end
  for name in pairs(running) do place_of(s, name) end
  for name, i in pairs(s.at) do
    local right, runs = reserved[name] or 0, running[name] or 0
    if s.sums[i] ~= right or s.sums[i + 1] ~= runs then
      wrong, s.sums[i], s.sums[i + 1] = wrong + 1, right, runs
    end
  end
  if wrong > 0 then changed(n, s) end
  return wrong
end

end
