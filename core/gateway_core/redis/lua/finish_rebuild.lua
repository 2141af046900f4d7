-- Puts staged holds, pools and buckets and the ledger's sums in place of the account's money.
-- Staged are `staged:<token>`, `pools:<token>` and `spent:<token>:<subject>`, the token being the new
-- generation; until they are in place they expire.
-- ARGV 2 token  3 charged  4 held  5 members  6 pools  then pairs of a field of `money` and its value
-- Returns 1, or 0 where the token has lapsed or the money is there already.
local token = ARGV[2]
local staged, pools = PREFIX .. 'staged:' .. token, PREFIX .. 'pools:' .. token

local function list_charged(key)
  local subjects = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 5) ~= 'held ' then subjects[#subjects + 1] = field end
  end
  return subjects
end

local function is_wanted()
  if redis.call('GET', PREFIX .. 'rebuild') ~= token then return false end
  redis.call('DEL', PREFIX .. 'rebuild')
  if is_current() or string.sub(token, 1, #ARGV[1] + 1) ~= ARGV[1] .. '.' then return false end
  return redis.call('HLEN', staged) == tonumber(ARGV[5])
    and redis.call('HLEN', pools) == tonumber(ARGV[6])
end

local function name_staged(subject)
  return PREFIX .. 'spent:' .. token .. ':' .. subject
end

local function is_complete(subjects)
  for _, subject in ipairs(subjects) do
    if redis.call('EXISTS', name_staged(subject)) == 0 then return false end
  end
  return true
end

local charged = list_charged(pools)
if not is_wanted() or not is_complete(charged) then
  redis.call('DEL', staged, pools)
  return 0
end
for _, subject in ipairs(charged) do redis.call('PERSIST', name_staged(subject)) end
if GENERATION then
  for _, subject in ipairs(list_charged(POOLS)) do
    redis.call('UNLINK', PREFIX .. 'spent:' .. GENERATION .. ':' .. subject)
  end
end
redis.call('DEL', MONEY, HOLDS, POOLS)
for from, to in pairs({[staged] = HOLDS, [pools] = POOLS}) do
  if redis.call('EXISTS', from) == 1 then
    redis.call('RENAME', from, to)
    redis.call('PERSIST', to)
  end
end
redis.call('HSET', MONEY, 'epoch', ARGV[1], 'generation', token, 'charged', ARGV[3], 'held', ARGV[4])
note_sizes()
for i = 7, #ARGV, 2 do
  redis.call('HSET', MONEY, ARGV[i], ARGV[i + 1])
end
-- Of what was charged before, calls are in the ledger by their journal or not at all.
for _, task in ipairs(redis.call('ZRANGE', CHARGED, 0, -1)) do
  if string.sub(task, 1, 5) == 'call-' then redis.call('ZREM', CHARGED, task) end
end
return 1
