-- Ends the hold of a group of calls and takes the next group's, with money and calls of the rates to
-- spare where far more is left of every limit.
-- ARGV 2 to 6 as in charge.lua
--      7 the hold to end, or ''  8 the hold to take, or ''  9 micros that it needs  10 its subjects, a
--        space before each
--      11 micros wanted to spare  12 calls wanted to count in advance  13 microseconds for which
--      14 the stamp of calls that were counted in advance and not made  15 their number
--      16 calls a minute  17 funds, or '' for unlimited  18 the part of what is left that is far: 1 / it
--      19 the least number of far calls  20 the least far part of the micros wanted: 1 / it
--      21 the number of budgets, then each as in admit.lua, then charges
-- Returns {1 where the hold was ended, 2 where it had been charged of late, else 0; micros to spare,
-- calls counted, their stamp; limit, remaining and reset in Unix seconds of the tightest rate}; error
-- STALE.
local BUDGET, BUDGETS = 6, 22
local FAR, CHARGES = tonumber(ARGV[18]), BUDGETS + BUDGET * tonumber(ARGV[21])

if not is_current() then return refuse_stale() end
local now = read_clock()

local function end_group()
  if ARGV[7] == '' then return 0 end
  local ended = end_hold(ARGV[7], CHARGES, now)
  if ended then return 1 end
  if ended == nil then return nil end
  return redis.call('ZSCORE', CHARGED, ARGV[7]) and 2 or 0
end

local ended = end_group()
if not ended then return refuse_stale() end

local function open_lease_log(key, limit)
  if ARGV[15] ~= '0' then redis.call('LREM', key, '-' .. ARGV[15], ARGV[14]) end
  return open_log(key, tonumber(limit), now)
end

local logs = {open_lease_log(PREFIX .. 'rate', ARGV[16])}
for i = BUDGETS, CHARGES - 1, BUDGET do
  if ARGV[i + 1] ~= '' then
    logs[#logs + 1] = open_lease_log(PREFIX .. 'rate:' .. ARGV[i], ARGV[i + 1])
  end
end

local function find_slots()
  local slots = tonumber(ARGV[12])
  for _, log in ipairs(logs) do
    local far = math.floor((log.limit - log.count) / FAR)
    if far < tonumber(ARGV[19]) then return 0 end
    slots = math.min(slots, far)
  end
  return slots
end

-- Below 0 where too little is far, nil where money is missing.
local function find_spare()
  is_current()
  local need, wanted = tonumber(ARGV[9]), tonumber(ARGV[11])
  local spare = wanted
  local function keep_far(limit, used)
    spare = math.min(spare, math.floor((limit - used - need) / FAR))
  end
  if ARGV[17] ~= '' then keep_far(tonumber(ARGV[17]), HELD_IN_ALL + CHARGED_IN_ALL) end
  for i = BUDGETS, CHARGES - 1, BUDGET do
    if ARGV[i + 2] ~= '' then
      local used, held = read_window(ARGV[i], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
      if not used then return nil end
      keep_far(tonumber(ARGV[i + 2]), used + held)
    end
  end
  return spare * tonumber(ARGV[20]) >= wanted and spare or -1
end

local slots, spare = 0, 0
if ARGV[8] ~= '' then
  slots = find_slots()
  if slots > 0 then
    spare = find_spare()
    if not spare then
      disown()
      return refuse_stale()
    end
    if spare < 0 then slots, spare = 0, 0 end
  end
  local micros = string.format('%.0f', tonumber(ARGV[9]) + spare)
  if micros ~= '0' then take_hold(ARGV[8], micros, ARGV[10], now) end
end

local tightest
local stamp = now + tonumber(ARGV[13])
for _, log in ipairs(logs) do
  -- Counted when they end at the latest: none leaves the log before the call it stands for would.
  if slots > 0 then stamp = math.max(stamp, log.last) end
end
for _, log in ipairs(logs) do
  if slots > 0 then count_ahead(log, slots, stamp) end
  log.left = math.max(0, log.limit - log.count)
  if not tightest or log.left < tightest.left
    or (log.left == tightest.left and log.oldest > tightest.oldest) then
    tightest = log
  end
end
return {ended, spare, slots, string.format('%.0f', stamp), tightest.limit, tightest.left,
  math.ceil((tightest.oldest + MINUTE) / 1000000)}
