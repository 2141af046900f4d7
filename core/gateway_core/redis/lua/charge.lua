-- Charges in the place of holds. Follows spent.lua.
-- ARGV 2 the process whose journal has the charges' records, or ''  3 microseconds to remember a charge
--      4 minute, 5 hour, 6 day that are the oldest to keep
-- A charge is its sequence in the journal or 0, micros, date, the oldest date to keep, minute, hour, day.
local CHARGE = 7
local WINDOWS = {{'1h', 4}, {'1d', 5}, {'7d', 5}, {'daily', 6}, {'weekly', 6}, {'monthly', 6}}
local GRAINS = {{'m', 4, 4}, {'h', 5, 5}, {'d', 6, 6}}

-- Places of the charges from `first` on that cost something and that the last rebuild has not counted.
local function find_due(first)
  local counted, due = 0, {}
  if ARGV[2] ~= '' then
    counted = tonumber(redis.call('HGET', MONEY, 'journal:' .. ARGV[2]) or '0')
  end
  for at = first, #ARGV, CHARGE do
    local sequence = tonumber(ARGV[at])
    if ARGV[at + 1] ~= '0' and (sequence == 0 or sequence > counted) then due[#due + 1] = at end
  end
  return due
end

local function forget_old(key)
  local old = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    for _, grain in ipairs(GRAINS) do
      local number = tonumber(string.sub(field, 2))
      if string.sub(field, 1, 1) == grain[1] and number and number < tonumber(ARGV[grain[3]]) then
        old[#old + 1] = field
      end
    end
  end
  if #old > 0 then redis.call('HDEL', key, unpack(old)) end
end

local function charge_subject(subject, at)
  local key, micros = name_spent(subject), ARGV[at + 1]
  redis.call('HINCRBY', POOLS, subject, micros)
  redis.call('HINCRBY', key, 'total', micros)
  -- A new hour is the occasion to forget the buckets that no window counts any more.
  if redis.call('HEXISTS', key, 'h' .. ARGV[at + 5]) == 0 then forget_old(key) end
  for _, grain in ipairs(GRAINS) do
    if tonumber(ARGV[at + grain[2]]) >= tonumber(ARGV[grain[3]]) then
      redis.call('HINCRBY', key, grain[1] .. ARGV[at + grain[2]], micros)
    end
  end
  local known = redis.call('HMGET', key, '1h', '1d', '7d', 'daily', 'weekly', 'monthly')
  for i, window in ipairs(WINDOWS) do
    if known[i] then
      local first, sum = string.match(known[i], '^(%-?%d+):(%d+)$')
      if tonumber(ARGV[at + window[2]]) >= tonumber(first) then
        sum = string.format('%.0f', tonumber(sum) + tonumber(micros))
        redis.call('HSET', key, window[1], first .. ':' .. sum)
      end
    end
  end
end

local function charge_account(at)
  redis.call('HINCRBY', MONEY, 'charged', ARGV[at + 1])
  local day = 'day:' .. ARGV[at + 2]
  if redis.call('HEXISTS', MONEY, day) == 0 then
    -- A new day is the occasion to forget those that nobody asks for any more.
    for _, name in ipairs(redis.call('HKEYS', MONEY)) do
      if string.sub(name, 1, 4) == 'day:' and string.sub(name, 5) < ARGV[at + 3] then
        redis.call('HDEL', MONEY, name)
      end
    end
  end
  redis.call('HINCRBY', MONEY, day, ARGV[at + 1])
end

-- Who comes late must not hold for it again: the hold would be charged a second time.
local function remember(task, now)
  redis.call('ZADD', CHARGED, string.format('%.0f', now), task)
  redis.call('ZREMRANGEBYSCORE', CHARGED, '-inf', string.format('%.0f', now - tonumber(ARGV[3])))
  redis.call('PEXPIRE', CHARGED, string.format('%.0f', tonumber(ARGV[3]) / 1000))
end

-- Ends a hold and makes the charges from `first` on that are due: true, false where there is no hold,
-- nil where money is missing.
local function end_hold(task, first, now)
  local micros, names = read_hold(task)
  if not micros then return false end
  local due, subjects = find_due(first), {}
  for subject in string.gmatch(names, '%S+') do
    subjects[#subjects + 1] = subject
    if #due > 0 and not is_whole(subject) then
      disown()
      return nil
    end
  end
  drop_hold(task, micros, names)
  for _, at in ipairs(due) do
    charge_account(at)
    for _, subject in ipairs(subjects) do charge_subject(subject, at) end
  end
  if #due > 0 then remember(task, now) end
  note_sizes()
  return true
end
