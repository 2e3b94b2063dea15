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
    slots = tonumber(slots or 1), gpus = tonumber(gpus or 0), vram = tonumber(vram or 0), needs = {}, keys = {},
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
  local shape = {items = {}, by_name = {}, gpus = {}}
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
  return shape
end)

-- `r` has of each node what it declares, a zero, and what its leases hold: "NAME=RESERVED/RUNNING,...", which goes on
-- counting when the node does not declare it any more. `stocked` of a node: there is such a field.
local function stock_read(text)
  local declared, sums = string.match(text, '^(%Z*)%z(.*)$')
  local s = {text = declared or '', reserved = {}, running = {}}
  for name, reserved, running in string.gmatch(sums or '', '([^=,]+)=(%d+)/(%d+)') do
    s.reserved[name], s.running[name] = tonumber(reserved), tonumber(running)
  end
  return s
end

-- nil: it has none.
function resources.of(n)
  local s = U.stocks[n.id]
  if s == nil then
    local text = n.stocked and call('HGET', KEY .. 'r', n.id)
    s = text and stock_read(text) or false
    U.stocks[n.id] = s
  end
  return s or nil
end

local function changed(n, s)
  s.left, U.dirty_stocks[n.id] = nil, s
end

-- What it declares from now on; answers whether that is something else.
function resources.declare(n, text)
  local s = resources.of(n)
  if (s and s.text or '') == text then return false end
  if not s then
    s = {text = '', reserved = {}, running = {}}
    U.stocks[n.id] = s
  end
  s.text, n.stocked = text, true
  changed(n, s)
  node_changed(n)
  return true
end

local function move(n, j, kind, sign)
  local s = j.demand ~= '' and resources.of(n)
  if not s then return end
  local sums, takes = s[kind], demands.takes(j)
  if #takes == 0 then return end
  for i = 1, #takes do
    local name = takes[i].name
    local sum = (sums[name] or 0) + sign * takes[i].amount
    sums[name] = sum > 0 and sum or 0
  end
  changed(n, s)
end

function resources.take(n, j)
  move(n, j, 'reserved', 1)
end

-- Its lease is acknowledged.
function resources.run(n, j)
  move(n, j, 'reserved', -1)
  move(n, j, 'running', 1)
end

function resources.give(n, j)
  move(n, j, j.lease == RUNNING_LEASE and 'running' or 'reserved', -1)
end

-- Leases of the epoch before hold nothing any more.
function resources.begin_epoch(n, keeps_runs)
  local s = resources.of(n)
  if not s then return end
  s.reserved = {}
  if not keeps_runs then s.running = {} end
  changed(n, s)
end

local function left_of(s, name, most)
  return most - (s.reserved[name] or 0) - (s.running[name] or 0)
end

local function gpu_left(s, gpu)
  if left_of(s, gpu.whole, 0) < 0 then return nil end -- somebody has all of it
  return left_of(s, gpu.shared, gpu.most)
end

-- Those with the least memory, that are free and have enough.
local function whole_fit(s, shape, d)
  local free = {}
  for _, gpu in ipairs(shape.gpus) do
    local left = gpu_left(s, gpu)
    local wanted = d.vram > 0 and d.vram or floor(gpu.vram * LIMIT.WHOLE_PERCENT / 100)
    if left and left_of(s, gpu.shared, 0) == 0 and left >= wanted then free[#free + 1] = gpu end
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

-- The one that is left with the least.
local function share_fit(s, shape, d)
  local best, least
  for _, gpu in ipairs(shape.gpus) do
    local left = gpu_left(s, gpu)
    if left and left >= d.vram and (not best or left < least) then best, least = gpu, left end
  end
  return best and '' .. best.id
end

-- The GPUs it gets, '' if it needs none; nil when it does not fit.
function resources.fit(n, d)
  if not d.is_more then return '' end
  local s = resources.of(n)
  if not s then return nil end
  local shape = shape_of(s.text)
  for i = 1, #d.needs do
    local need = d.needs[i]
    local item = shape.by_name[need.name]
    if not item or left_of(s, item.name, item.most) < need.amount then return nil end
  end
  if d.gpus > 0 then return whole_fit(s, shape, d) end
  return d.vram > 0 and share_fit(s, shape, d) or d.vram == 0 and '' or nil
end

-- What answers tell of it: how many items and GPUs, which GPUs are shared, and what is left of each.
function resources.left(n)
  local s = n.stocked and resources.of(n)
  if not s or s.text == '' then return '' end
  if s.left then return s.left end
  local shape, shared, numbers = shape_of(s.text), 0, {}
  for i, item in ipairs(shape.items) do numbers[i] = pack('<i4', left_of(s, item.name, item.most)) end
  for i, gpu in ipairs(shape.gpus) do
    numbers[#numbers + 1] = pack('<i4', gpu_left(s, gpu) or LIMIT.LEFT_WHOLE)
    if left_of(s, gpu.shared, 0) < 0 then shared = shared + 2 ^ (i - 1) end
  end
  s.left = pack('<BBI4', #shape.items, #shape.gpus, shared) .. concat(numbers)
  return s.left
end

local function sums_text(s)
  local list = {}
  for name, reserved in pairs(s.reserved) do
    local running = s.running[name] or 0
    if reserved > 0 or running > 0 then list[#list + 1] = name .. '=' .. reserved .. '/' .. running end
  end
  for name, running in pairs(s.running) do
    if running > 0 and not s.reserved[name] then list[#list + 1] = name .. '=0/' .. running end
  end
  return concat(list, ',')
end

function resources.write()
  for id, s in pairs(rawget(U, 'dirty_stocks') or {}) do
    local n, sums = node_get(id), sums_text(s)
    if n and (s.text ~= '' or sums ~= '') then
      call('HSET', KEY .. 'r', id, s.text .. '\0' .. sums)
    else
      call('HDEL', KEY .. 'r', id)
      if n then
        n.stocked = false
        node_changed(n)
      end
    end
  end
  U.dirty_stocks = nil
end

-- The audit has counted these sums. Answers how many were others.
function resources.put_right(n, reserved, running)
  local s, wrong = resources.of(n), 0
  if not s then return 0 end
  for kind, sums in pairs({reserved = reserved, running = running}) do
    for name, sum in pairs(s[kind]) do
      if sum ~= (sums[name] or 0) then wrong = wrong + 1 end
    end
    for name, sum in pairs(sums) do
      if sum ~= 0 and not s[kind][name] then wrong = wrong + 1 end
    end
    if wrong > 0 then
      s[kind] = sums
      changed(n, s)
    end
  end
  return wrong
end

end
