-- What a job takes besides its slot, and what nodes have of it: model/demand.c and model/resources.c.
do

-- Parsed texts are cached across batches, up to this many; then the cache is cleared.
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

-- "NAME=AMOUNT,...": equal needs share one list.
local needs_of = cached(function(text)
  local needs = {}
  for name, amount in string.gmatch(text, '([^=,]+)=(%d+)') do
    needs[#needs + 1] = {name = name, amount = tonumber(amount)}
  end
  return needs
end)

-- "SLOTS GPUS VRAM NEEDS KEY,..."; '' is one slot. `is_more`: it needs something besides slots. `moves`: its needs, false:
-- none. `is_gated` and what follows it: see limits.gate_open.
demands.parse = cached(function(text)
  local slots, gpus, vram, needs, keys = string.match(text, '^(%d+) (%d+) (%d+) (%S*) (%S*)$')
  local d = {
    text = text, slots = tonumber(slots or 1), gpus = tonumber(gpus or 0), vram = tonumber(vram or 0), needs = needs_of(needs or ''),
    moves = false, keys = {}, is_more = false, is_gated = false, is_asked = false, is_open = false, is_awaited = false, bounded = nil,
    gated = {}, rules = {}, gate_round = -1, full_round = 0, starts = 0, stops = 0, uncounted = 0,
  }
  for key in string.gmatch(keys or '', '[^,]+') do d.keys[#d.keys + 1] = key end
  d.moves = #d.needs > 0 and d.needs
  d.is_more = #d.needs > 0 or d.gpus > 0 or d.vram > 0
  return d
end)

function demands.slots(j)
  return j.demand == '' and 1 or demands.parse(j.demand).slots
end

function demands.keys(j)
  return demands.parse(j.demand).keys
end

-- What its lease holds of its node, by name: `#ID` is memory of a shared GPU, `!ID` a whole GPU.
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

-- "NAME=CAPACITY/USABLE,... ID=VRAM/USABLE,...": what can be allocated of each, in order.
local shape_of = cached(function(text)
  local items, gpus = string.match(text, '^(%S*) (%S*)$')
  local shape = {items = {}, by_name = {}, gpus = {}, format = '', lefts = {}, round = 0}
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

-- What leases hold, by name: "NAME=AMOUNT,...", without zero amounts. Sums are immutable: each start or end produces
-- another one. Jobs and nodes are similar, so the same sums recur. They are cached by text, and each links to the sums
-- with one such need `more` or `less`.
local SUMS_MAX = 2048
local sums_known, sum_count, sums_round = {}, 0, 0

local function sums_of(amounts)
  local names, texts = {}, {}
  for name in pairs(amounts) do names[#names + 1] = name end
  sort(names)
  for i = 1, #names do texts[i] = names[i] .. '=' .. string.format('%.0f', amounts[names[i]]) end
  local text = concat(texts, ',')
  local sums = sums_known[text]
  if not sums then
    if sum_count == SUMS_MAX then sums_known, sum_count, sums_round = {}, 0, sums_round + 1 end
    sums = {text = text, amounts = amounts, more = {}, less = {}}
    sums_known[text], sum_count = sums, sum_count + 1
  end
  return sums
end

local function sums_read(text)
  local amounts = {}
  for name, amount in string.gmatch(text, '([^=,]+)=(%d+)') do amounts[name] = tonumber(amount) end
  return sums_of(amounts)
end

-- Adds `sign` times what is taken.
local function sums_with(sums, takes, sign)
  local amounts = {}
  for name, amount in pairs(sums.amounts) do amounts[name] = amount end
  for i = 1, #takes do
    local name = takes[i].name
    local amount = (amounts[name] or 0) + sign * takes[i].amount
    amounts[name] = amount > 0 and amount or nil
  end
  return sums_of(amounts)
end

local function sums_added(a, b)
  local amounts = {}
  for name, amount in pairs(a.amounts) do amounts[name] = amount end
  for name, amount in pairs(b.amounts) do amounts[name] = (amounts[name] or 0) + amount end
  return sums_of(amounts)
end

-- What a node declares, and what its leases hold: reserved, running, and both together. Leases keep counting when the
-- node no longer declares the resource. `r` has it as a text: the declaration and the first two sums, separated by
-- NULs. A node's `stocked`: such a field may exist.
local function stock_set(s, declared, reserved, running)
  local shape = shape_of(declared)
  s.declared, s.shape, s.reserved, s.running = declared, shape, reserved, running
  s.left = resources.left_at(shape, sums_added(reserved, running))
end

local function stock_new(declared, reserved, running)
  local s = {declared = nil, shape = nil, reserved = nil, running = nil, left = nil, is_changed = false}
  stock_set(s, declared, sums_read(reserved), sums_read(running))
  return s
end

-- nil: it has none.
function resources.of(n)
  local s = kept.stocks[n.id]
  if s == nil then
    local text = n.stocked and call('HGET', KEY .. 'r', n.id)
    s = text and stock_new(string.match(text, '^(%Z*)%z?(%Z*)%z?(%Z*)')) or false
    kept.stocks[n.id] = s
  end
  return s or nil
end

local function put(n, s, declared, reserved, running)
  stock_set(s, declared, reserved, running)
  kept.stocks[n.id], kept.dirty_stocks[n.id] = s, s
end

-- Sets what it declares; returns whether that changed.
function resources.declare(n, text)
  local s = resources.of(n)
  if (s and s.declared or '') == text then return false end
  s = s or stock_new('', '', '')
  put(n, s, text, s.reserved, s.running)
  n.stocked = true
  node_changed(n)
  return true
end

-- So many times what it takes is reserved, and runs, from now on.
local function move(n, j, reserved, running)
  local s = j.demand ~= '' and resources.of(n)
  if not s then return end
  local takes = demands.takes(j)
  if #takes == 0 then return end
  put(n, s, s.declared, sums_with(s.reserved, takes, reserved), sums_with(s.running, takes, running))
end

function resources.take(n, j)
  move(n, j, 1, 0)
end

-- Its lease was acknowledged.
function resources.run(n, j)
  move(n, j, -1, 1)
end

function resources.give(n, j)
  if j.lease == RUNNING_LEASE then move(n, j, 0, -1) else move(n, j, -1, 0) end
end

local NOTHING = {}

-- Leases of the previous epoch no longer hold anything.
function resources.begin_epoch(n, keeps_runs)
  local s = resources.of(n)
  if s then put(n, s, s.declared, sums_of(NOTHING), keeps_runs and s.running or sums_of(NOTHING)) end
end

local function left_of(held, name, most)
  return most - (held.amounts[name] or 0)
end

local function gpu_left(held, gpu)
  if left_of(held, gpu.whole, 0) < 0 then return nil end -- a lease has all of it
  return left_of(held, gpu.shared, gpu.most)
end

-- Is there this much memory? 0: nearly all of the GPU. `left` is the result of gpu_left().
local function can_be_whole(held, gpu, left, vram)
  local wanted = vram > 0 and vram or floor(gpu.vram * LIMIT.WHOLE_PERCENT / 100)
  return left and left_of(held, gpu.shared, 0) == 0 and left >= wanted
end

-- The free GPUs with the least memory that have enough.
local function whole_fit(held, shape, d)
  local free = {}
  for _, gpu in ipairs(shape.gpus) do
    if can_be_whole(held, gpu, gpu_left(held, gpu), d.vram) then free[#free + 1] = gpu end
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

-- The one with the least memory left; unused GPUs are kept unused as long as another has enough.
local function share_fit(held, shape, d)
  local best, least, breaks
  for _, gpu in ipairs(shape.gpus) do
    local left = gpu_left(held, gpu)
    if left and left >= d.vram then
      local is_whole = can_be_whole(held, gpu, left, 0)
      if not best or (breaks and not is_whole) or (breaks == is_whole and left < least) then
        best, least, breaks = gpu, left, is_whole
      end
    end
  end
  return best and '' .. best.id
end

local function fits(s, needs)
  for i = 1, #needs do
    local need = needs[i]
    local item = s.shape.by_name[need.name]
    if not item or left_of(s.left.held, item.name, item.most) < need.amount then return false end
  end
  return true
end

-- The GPUs for a job, '' if it needs none; nil when it does not fit.
function resources.fit(n, d)
  if not d.is_more then return '' end
  local s = resources.of(n)
  if not s then return nil end
  local shape, held = s.shape, s.left.held
  if not fits(s, d.needs) then return nil end
  if d.gpus > 0 then return whole_fit(held, shape, d) end
  return d.vram > 0 and share_fit(held, shape, d) or d.vram == 0 and '' or nil
end

local lefts = {} -- reused by later batches so that it need not grow again

-- Its part of an answer: how many items and GPUs, which GPUs are shared, and what is left of each.
local function left_text(shape, held)
  local items, gpus, shared = shape.items, shape.gpus, 0
  local count = #items
  for i = 1, count do lefts[i] = left_of(held, items[i].name, items[i].most) end
  for i = 1, #gpus do
    count = count + 1
    lefts[count] = gpu_left(held, gpus[i]) or LIMIT.LEFT_WHOLE
    if left_of(held, gpus[i].shared, 0) < 0 then shared = shared + 2 ^ (i - 1) end
  end
  return count > 0 and pack(shape.format, #items, #gpus, shared, unpack_list(lefts, 1, count)) or ''
end

-- What is left when so much is held of what nodes declare: the text, answers that have it, the values of `r` by what of it
-- is reserved (the rest runs), and what is left with `more` or `less` of what jobs need that are alike; false: it does not
-- fit, or less than that is held.
function resources.left_at(shape, held)
  if shape.round ~= sums_round then shape.lefts, shape.round = {}, sums_round end
  local left = shape.lefts[held]
  if not left then
    left = {held = held, text = left_text(shape, held), told = {}, more = {}, less = {}, texts = {}}
    shape.lefts[held] = left
  end
  return left
end

function resources.left(n)
  local s = n.stocked and resources.of(n)
  return s and s.left.text or ''
end

-- Texts cached with all that is left anywhere. When there are too many, all of it is forgotten: nodes keep theirs until
-- `kept` is dropped, which is within a second.
local TEXTS_MAX = 16384
local text_count = 0

local function count_text()
  text_count = text_count + 1
  if text_count == TEXTS_MAX then text_count, sums_round = 0, sums_round + 1 end
end

-- The answer text for a node with these counters.
function resources.tell(left, counts)
  local told = counts .. left.text
  left.told[counts] = told
  count_text()
  return told
end

-- For identical jobs, see columns.lua: computes what is not cached yet.
function resources.more(sums, needs)
  local more = sums_with(sums, needs, 1)
  sums.more[needs] = more
  return more
end

-- False: less than that is held.
function resources.less(sums, needs)
  local less = true
  for i = 1, #needs do less = less and (sums.amounts[needs[i].name] or 0) >= needs[i].amount end
  less = less and sums_with(sums, needs, -1)
  sums.less[needs] = less
  return less
end

function resources.left_more(s, needs)
  local left = s.left
  local more = fits(s, needs) and resources.left_at(s.shape, left.held.more[needs] or resources.more(left.held, needs))
  left.more[needs] = more
  return more
end

function resources.left_less(s, needs)
  local left = s.left
  local held = left.held.less[needs]
  if held == nil then held = resources.less(left.held, needs) end
  local less = held and resources.left_at(s.shape, held)
  left.less[needs] = less
  return less
end

-- Its value in `r`. The same ones recur, and a long text costs more to make than to look up.
function resources.text(s)
  local left, reserved = s.left, s.reserved
  local text = left.texts[reserved]
  if text then return text end
  text = s.declared .. '\0' .. reserved.text .. '\0' .. s.running.text
  left.texts[reserved] = text
  count_text()
  return text
end

function resources.write()
  local set, size = columns.stocks()
  local del
  for id, s in pairs(kept.dirty_stocks) do
    if s.declared ~= '' or s.left.held.text ~= '' then
      set[size + 1], set[size + 2] = id, resources.text(s)
      size = size + 2
    else
      del = del or {}
      del[#del + 1], kept.stocks[id] = id, nil
    end
  end
  if size > 0 then call_in_parts('HSET', KEY .. 'r', set, 2, size) end
  if del then call_in_parts('HDEL', KEY .. 'r', del) end
  if next(kept.dirty_stocks) then kept.dirty_stocks = {} end
end

-- The names whose amounts differ between these.
local function note_wrong(wrong, have, right)
  for name, amount in pairs(have) do
    if amount ~= (right[name] or 0) then wrong[name] = true end
  end
  for name, amount in pairs(right) do
    if amount ~= (have[name] or 0) then wrong[name] = true end
  end
end

-- The audit has counted these sums. Returns how many were wrong.
function resources.put_right(n, reserved, running)
  local s, wrong, count = resources.of(n), {}, 0
  if not s then return 0 end
  note_wrong(wrong, s.reserved.amounts, reserved)
  note_wrong(wrong, s.running.amounts, running)
  for _ in pairs(wrong) do count = count + 1 end
  if count > 0 then
    local none = sums_of(NOTHING)
    put(n, s, s.declared, sums_added(none, {amounts = reserved}), sums_added(none, {amounts = running}))
  end
  return count
end

end
