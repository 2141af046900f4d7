-- What a subject was charged, by windows. Follows account.lua; GENERATION must have been read.
local function name_spent(subject)
  return PREFIX .. 'spent:' .. GENERATION .. ':' .. subject
end

-- Whether a subject's buckets are all there: they carry the same total as the pools.
local function is_whole(subject)
  local total = redis.call('HGET', name_spent(subject), 'total')
  return (redis.call('HGET', POOLS, subject) or '0') == (total or '0')
end

local function add_up(key, grain, first)
  local sum, oldest, parts = 0, -1, redis.call('HGETALL', key)
  for i = 1, #parts, 2 do
    if string.sub(parts[i], 1, 1) == grain then
      local number, micros = tonumber(string.sub(parts[i], 2)), tonumber(parts[i + 1])
      if number and number >= first and micros > 0 then
        sum = sum + micros
        if oldest < 0 or number < oldest then oldest = number end
      end
    end
  end
  return sum, oldest
end

-- What was charged in a window, and what is held; nil where buckets are missing. `grain` is m, h, d or t.
local function read_window(subject, window, grain, first)
  local pool = redis.call('HMGET', POOLS, subject, 'held ' .. subject)
  local known, held = pool[1] or '0', tonumber(pool[2] or '0')
  local key = name_spent(subject)
  local state = redis.call('HMGET', key, 'total', window)
  if known ~= (state[1] or '0') then return nil end
  if grain == 't' or known == '0' then return tonumber(known), held end
  local prefix = first .. ':'
  if state[2] and string.sub(state[2], 1, #prefix) == prefix then
    return tonumber(string.sub(state[2], #prefix + 1)), held
  end
  -- The window has moved on, at most once a minute: only then are its buckets read.
  local sum = add_up(key, grain, tonumber(first))
  redis.call('HSET', key, window, prefix .. string.format('%.0f', sum))
  return sum, held
end

-- {charged in the window, held, number of the oldest bucket that counts or -1}
local function tell_budget(subject, window, grain, first)
  local used, held = read_window(subject, window, grain, first)
  if not used then return nil end
  local oldest = -1
  if grain == 'm' or grain == 'h' then
    local _
    _, oldest = add_up(name_spent(subject), grain, tonumber(first))
  end
  return {used, held, oldest}
end
