-- What the scripts on a pool of stored bytes begin with; the keys, and whether they can be trusted.
-- KEYS 1 `gw:{<namespace>/<account>}:stored:<pool>`; the pool's other keys lie beside it, in the same slot.
-- ARGV 1 the run_id of the server
--   <KEYS 1>          HASH of epoch, members, bytes
--   <KEYS 1>:members  HASH of member -> bytes:microseconds
--   <KEYS 1>:rebuild  HASH while one is under way: '' -> its token, and what it has to be told, by
--                     member: its bytes, `-` where it was released, `>name` where it was moved
local POOL, MEMBERS, REBUILD = KEYS[1], KEYS[1] .. ':members', KEYS[1] .. ':rebuild'
local USED

local function is_current()
  local pool = redis.call('HMGET', POOL, 'epoch', 'members', 'bytes')
  USED = tonumber(pool[3])
  return pool[1] == ARGV[1] and tonumber(pool[2]) == redis.call('HLEN', MEMBERS)
end

local function refuse_stale()
  return redis.error_reply('STALE rebuild what this account stores')
end

-- The bytes of a member as text, nil where it is none.
local function read_member(name)
  local value = redis.call('HGET', MEMBERS, name)
  return value and string.match(value, '^(%d+):')
end

local function put_member(name, bytes)
  redis.call('HSET', MEMBERS, name, bytes .. ':' .. string.format('%.0f', read_clock()))
  redis.call('HINCRBY', POOL, 'bytes', bytes)
  redis.call('HSET', POOL, 'members', redis.call('HLEN', MEMBERS))
end

local function drop_member(name, bytes)
  redis.call('HDEL', MEMBERS, name)
  -- Redis takes -0 for no number
  if bytes ~= '0' then redis.call('HINCRBY', POOL, 'bytes', '-' .. bytes) end
  redis.call('HSET', POOL, 'members', redis.call('HLEN', MEMBERS))
end

local function is_rebuilt()
  return redis.call('EXISTS', REBUILD) == 1
end

local function tell_rebuild(name, what)
  redis.call('HSET', REBUILD, name, what)
end
