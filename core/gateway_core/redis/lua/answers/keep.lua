-- Keep an answer of a language model until it is due, within the bytes of its account and of all.
-- KEYS 1 `gw:{<namespace>/}answers`; the other keys lie beside it, in the same slot.
-- ARGV 2 account, 3 digest, 4 the answer, 5 seconds, 6 and 7 most bytes of an account and of all
--   answers                 HASH of account -> bytes, and '' -> bytes of all
--   answers:of              HASH of digest -> bytes and account
--   answers:due             ZSET of digests by the microsecond at which they expire
--   answers:due:<account>   the same of one account
--   answers:<digest>        the answer, which expires by itself
-- Answers that are due soonest make room. Returns 1, or 0 where there is no room.
local ROOT = KEYS[1]
local OF, DUE, OWN = ROOT .. ':of', ROOT .. ':due', ROOT .. ':due:' .. ARGV[2]
-- bounds the work of one call
local MOST_DROPPED = 100
-- bytes beside an answer: its names and times
local BESIDE = 512

local function count(account, change)
  if redis.call('HINCRBY', ROOT, account, change) <= 0 then
    redis.call('HDEL', ROOT, account)
  end
end

local function drop(digest)
  local size, account = string.match(redis.call('HGET', OF, digest) or '', '^(%d+) (.*)$')
  redis.call('ZREM', DUE, digest)
  redis.call('UNLINK', ROOT .. ':' .. digest)
  if size then
    redis.call('HDEL', OF, digest)
    redis.call('ZREM', ROOT .. ':due:' .. account, digest)
    count(account, -size)
    count('', -size)
  end
end

local function make_room(queue, account, most)
  for _ = 1, MOST_DROPPED do
    if tonumber(redis.call('HGET', ROOT, account) or 0) <= most then
      return true
    end
    local digest = redis.call('ZRANGE', queue, 0, 0)[1]
    if not digest then
      return false
    end
    drop(digest)
  end
  return false
end

local now, digest, size = read_clock(), ARGV[3], #ARGV[4] + BESIDE
for _, due in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, MOST_DROPPED)) do
  drop(due)
end
drop(digest)
if not (make_room(OWN, ARGV[2], ARGV[6] - size) and make_room(DUE, '', ARGV[7] - size)) then
  return 0
end
local due = now + ARGV[5] * 1000000
redis.call('SET', ROOT .. ':' .. digest, ARGV[4], 'EX', ARGV[5])
redis.call('HSET', OF, digest, size .. ' ' .. ARGV[2])
redis.call('ZADD', DUE, due, digest)
redis.call('ZADD', OWN, due, digest)
count(ARGV[2], size)
count('', size)
return 1
