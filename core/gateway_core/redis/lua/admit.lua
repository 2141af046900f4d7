-- Counts one call in the account's rate and the budgets', and where a task is named takes its hold.
-- ARGV 2 calls a minute  3 task, or ''  4 micros  5 funds, or '' for unlimited
--      6 '1' where the call counts in the rates if it passes, '2' where it is refused whatever they
--      say, '0' where it is past them and only wants its hold
--      7 the hold's subjects, a space before each
--      then for each budget: subject, calls a minute or '', limit or '', window, grain, first bucket
-- Returns {limit, remaining, reset in Unix seconds, seconds to wait or 0 where admitted, outcome of the
-- hold}, the first three of the tightest rate; of the budget exceeded its place, and as tell_budget;
-- where the balance is too small, what is left of it
local NOT_ASKED, HELD, UNDERFUNDED, STALE, EXCEEDED, BUSY = 0, 1, 2, 3, 4, 5
local BUDGET = 6

local asked, counted = ARGV[6] ~= '0', ARGV[6] == '1'
local now = read_clock()

local logs = {open_log(PREFIX .. 'rate', tonumber(ARGV[2]), now)}
if asked then
  for i = 8, #ARGV, BUDGET do
    if ARGV[i + 1] ~= '' then
      logs[#logs + 1] = open_log(PREFIX .. 'rate:' .. ARGV[i], tonumber(ARGV[i + 1]), now)
    end
  end
  local full, free
  for _, log in ipairs(logs) do
    if log.count >= log.limit then
      local at = find_free(log, now)
      if not full or at > free then full, free = log, at end
    end
  end
  if full then
    local wait = tell_wait(free, now)
    return {full.limit, 0, math.ceil(free / 1000000), wait, NOT_ASKED}
  end
end

local tightest
for _, log in ipairs(logs) do
  if counted then
    count_call(log, now)
  end
  log.left = math.max(0, log.limit - log.count)
  if not tightest or log.left < tightest.left
    or (log.left == tightest.left and log.oldest > tightest.oldest) then
    tightest = log
  end
end
local rate = {tightest.limit, tightest.left, math.ceil((tightest.oldest + MINUTE) / 1000000), 0}

local function find_exceeded()
  for i = 8, #ARGV, BUDGET do
    if ARGV[i + 2] ~= '' then
      local used, held = read_window(ARGV[i], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
      if not used then return STALE end
      if used + held + tonumber(ARGV[4]) > tonumber(ARGV[i + 2]) then
        rate[6] = (i - 8) / BUDGET
        local told = tell_budget(ARGV[i], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
        rate[7], rate[8], rate[9] = told[1], told[2], told[3]
        return EXCEEDED
      end
    end
  end
end

local function hold()
  local task, micros = ARGV[3], ARGV[4]
  if not is_current() then return STALE end
  if redis.call('ZSCORE', CHARGED, task) then return HELD end
  local standing, subjects = read_hold(task)
  if standing then
    -- One for another amount, or in other pools, is another call's: none was asked for this one.
    if standing ~= micros or subjects ~= ARGV[7] then return BUSY end
    redis.call('HSET', HOLDS, task, micros .. ':' .. string.format('%.0f', now) .. subjects)
    return HELD
  end
  local problem = find_exceeded()
  if problem == STALE then disown() end
  if problem then return problem end
  local left = ARGV[5] ~= '' and tonumber(ARGV[5]) - HELD_IN_ALL - CHARGED_IN_ALL
  if left and tonumber(micros) > left then
    rate[6] = left
    return UNDERFUNDED
  end
  take_hold(task, micros, ARGV[7], now)
  return HELD
end

rate[5] = ARGV[3] == '' and NOT_ASKED or hold()
if counted and (rate[5] == EXCEEDED or rate[5] == STALE) then
  -- What a spent budget refuses does not count, nor what is to be asked again.
  for _, log in ipairs(logs) do redis.call('RPOP', log.key) end
end
return rate
