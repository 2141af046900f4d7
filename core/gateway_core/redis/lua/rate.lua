-- Sliding logs of calls: the microseconds at which those of the last minute were counted, oldest first.
local MINUTE, MANY = 60000000, 100

local function open_log(key, limit, now)
  -- Kept in order even where the clock is set back; set back by a whole window, the log tells nothing.
  local last = tonumber(redis.call('LINDEX', key, -1) or '0')
  if last > now + MINUTE then
    redis.call('DEL', key)
    last = 0
  end
  local oldest = tonumber(redis.call('LINDEX', key, 0) or now)
  while oldest <= now - MINUTE do
    -- Calls counted in advance leave together; so many are looked at in one step.
    local last_of_many = tonumber(redis.call('LINDEX', key, MANY - 1) or now)
    redis.call('LPOP', key, last_of_many <= now - MINUTE and MANY or 1)
    oldest = tonumber(redis.call('LINDEX', key, 0) or now)
  end
  return {key = key, limit = limit, last = last, oldest = oldest, count = redis.call('LLEN', key)}
end

-- When a full log next has room, in microseconds.
local function find_free(log, now)
  -- Where the limit was lowered meanwhile, more than the oldest must leave before one fits.
  return tonumber(redis.call('LINDEX', log.key, log.count - log.limit) or now) + MINUTE
end

local function tell_wait(free, now)
  return math.max(1, math.ceil((free - now) / 1000000))
end

local function count_call(log, now)
  redis.call('RPUSH', log.key, string.format('%.0f', math.max(now, log.last)))
  redis.call('EXPIRE', log.key, 61)
  log.count = log.count + 1
end

-- Counts `calls` that are made until `stamp`, which is not before any other in the log.
local function count_ahead(log, calls, stamp)
  local text, left = string.format('%.0f', stamp), calls
  while left > 0 do
    local stamps = {}
    for i = 1, math.min(left, 1000) do stamps[i] = text end
    redis.call('RPUSH', log.key, unpack(stamps))
    left = left - #stamps
  end
  redis.call('EXPIRE', log.key, 62)
  if log.count == 0 then log.oldest = stamp end
  log.count = log.count + calls
end
