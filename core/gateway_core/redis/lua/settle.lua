-- Ends a task's hold and charges in its place; without a hold nothing is charged.
-- ARGV 2 task  3 charged  4 date  5 the oldest date to keep  6 microseconds to remember the charge
--      7 minute, 8 hour, 9 day of the charge  10 minute, 11 hour, 12 day that are the oldest to keep
-- Returns 1, or 0 where there was no hold; error STALE.
local WINDOWS = {{'1h', 7}, {'1d', 8}, {'7d', 8}, {'daily', 9}, {'weekly', 9}, {'monthly', 9}}
local GRAINS = {{'m', 7, 10}, {'h', 8, 11}, {'d', 9, 12}}

if not is_current() then return refuse_stale() end
local micros, names = read_hold(ARGV[2])
if not micros then return 0 end
local subjects = {}
for subject in string.gmatch(names, '%S+') do
  subjects[#subjects + 1] = subject
  if ARGV[3] ~= '0' and not is_whole(subject) then
    disown()
    return refuse_stale()
  end
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

local function charge(subject)
  local key = name_spent(subject)
  redis.call('HINCRBY', POOLS, subject, ARGV[3])
  redis.call('HINCRBY', key, 'total', ARGV[3])
  -- A new hour is the occasion to forget the buckets that no window counts any more.
  if redis.call('HEXISTS', key, 'h' .. ARGV[8]) == 0 then forget_old(key) end
  for _, grain in ipairs(GRAINS) do
    if tonumber(ARGV[grain[2]]) >= tonumber(ARGV[grain[3]]) then
      redis.call('HINCRBY', key, grain[1] .. ARGV[grain[2]], ARGV[3])
    end
  end
  local known = redis.call('HMGET', key, '1h', '1d', '7d', 'daily', 'weekly', 'monthly')
  for i, window in ipairs(WINDOWS) do
    if known[i] then
      local first, sum = string.match(known[i], '^(%-?%d+):(%d+)$')
      if tonumber(ARGV[window[2]]) >= tonumber(first) then
        sum = string.format('%.0f', tonumber(sum) + tonumber(ARGV[3]))
        redis.call('HSET', key, window[1], first .. ':' .. sum)
      end
    end
  end
end

drop_hold(ARGV[2], micros, names)
if ARGV[3] ~= '0' then
  redis.call('HINCRBY', MONEY, 'charged', ARGV[3])
  for _, subject in ipairs(subjects) do charge(subject) end
  local day = 'day:' .. ARGV[4]
  if redis.call('HEXISTS', MONEY, day) == 0 then
    -- A new day is the occasion to forget those that nobody asks for any more.
    for _, name in ipairs(redis.call('HKEYS', MONEY)) do
      if string.sub(name, 1, 4) == 'day:' and string.sub(name, 5) < ARGV[5] then
        redis.call('HDEL', MONEY, name)
      end
    end
  end
  redis.call('HINCRBY', MONEY, day, ARGV[3])
  -- Who comes late must not hold for it again: the hold would be charged a second time.
  local now = read_clock()
  redis.call('ZADD', CHARGED, string.format('%.0f', now), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', CHARGED, '-inf', string.format('%.0f', now - tonumber(ARGV[6])))
  redis.call('PEXPIRE', CHARGED, string.format('%.0f', tonumber(ARGV[6]) / 1000))
end
note_sizes()
return 1
