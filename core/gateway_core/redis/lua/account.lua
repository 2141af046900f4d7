-- What the scripts on an account's money begin with; the keys, and whether they can be trusted.
-- KEYS 1 `gw:{<namespace>/<account>}:money`; the account's other keys lie beside it, in the same slot.
-- ARGV 1 the run_id of the server
--   money    HASH of epoch, generation, members, pools, held, charged, day:<date>,
--            journal:<process> (how far the last rebuild found it)
--   holds    HASH of task -> micros:microseconds, then the subjects, a space before each
--   pools    HASH of subject -> charged ever, `held <subject>` -> held
--   charged  ZSET of tasks charged of late, by the microsecond
--   spent:<generation>:<subject>  HASH of total, m<minute>, h<hour>, d<day> (numbered from the epoch),
--            and by window `first:sum`, what its buckets from `first` on come to
--   used     ZSET of keys by the Unix seconds of their last use
--   rate, rate:<subject>  LIST of the microseconds at which calls were counted, oldest first
local PREFIX = string.sub(KEYS[1], 1, -6)
local MONEY, HOLDS = KEYS[1], PREFIX .. 'holds'
local POOLS, CHARGED = PREFIX .. 'pools', PREFIX .. 'charged'
local GENERATION, HELD_IN_ALL, CHARGED_IN_ALL

local function is_current()
  local money = redis.call('HMGET', MONEY, 'epoch', 'members', 'pools', 'generation', 'held', 'charged')
  GENERATION, HELD_IN_ALL, CHARGED_IN_ALL = money[4], tonumber(money[5]), tonumber(money[6])
  return money[1] == ARGV[1]
    and tonumber(money[2]) == redis.call('HLEN', HOLDS)
    and tonumber(money[3]) == redis.call('HLEN', POOLS)
end

-- To be called after holds or pools have changed: what is evicted later is missed by these.
local function note_sizes()
  redis.call('HSET', MONEY, 'members', redis.call('HLEN', HOLDS), 'pools', redis.call('HLEN', POOLS))
end

local function refuse_stale()
  return redis.error_reply('STALE rebuild the money of this account')
end

-- From then on all of the account's money is stale: a part of it is missing.
local function disown()
  redis.call('HDEL', MONEY, 'epoch')
end

-- Amount, subjects with a space before each, and since when it stands, as text; nil where there is none.
local function read_hold(task)
  local value = redis.call('HGET', HOLDS, task)
  if not value then return nil end
  local micros, since, subjects = string.match(value, '^(%d+):(%d+)(.*)$')
  return micros, subjects, since
end

-- To be followed by note_sizes.
local function drop_hold(task, micros, subjects)
  redis.call('HDEL', HOLDS, task)
  if micros == '0' then return end
  redis.call('HINCRBY', MONEY, 'held', '-' .. micros)
  for subject in string.gmatch(subjects, '%S+') do
    if redis.call('HINCRBY', POOLS, 'held ' .. subject, '-' .. micros) == 0 then
      redis.call('HDEL', POOLS, 'held ' .. subject)
    end
  end
end

local function take_hold(task, micros, subjects, now)
  redis.call('HSET', HOLDS, task, micros .. ':' .. string.format('%.0f', now) .. subjects)
  redis.call('HINCRBY', MONEY, 'held', micros)
  if micros ~= '0' then
    for subject in string.gmatch(subjects, '%S+') do
      redis.call('HINCRBY', POOLS, 'held ' .. subject, micros)
    end
  end
  note_sizes()
end
