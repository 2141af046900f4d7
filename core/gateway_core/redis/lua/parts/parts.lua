-- What the scripts on an Upload's parts begin with.
-- KEYS 1 `gw:{<namespace>/<account>}:parts:<upload>`, a HASH of part -> bytes, and '' -> epoch:bytes
-- ARGV 1 the run_id of the server  2 seconds to keep it
local EPOCH, USED = string.match(redis.call('HGET', KEYS[1], '') or '', '^(%w+):(%d+)$')
USED = tonumber(USED)

local function is_current()
  return EPOCH == ARGV[1]
end

local function keep(bytes)
  redis.call('HSET', KEYS[1], '', ARGV[1] .. ':' .. string.format('%.0f', bytes))
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
