-- Puts staged members in place of the pool's, with what was told while the record was read.
-- Staged is `<KEYS 1>:<token>`; until it is in place it expires.
-- ARGV 2 token  3 members staged
-- Returns 1, or 0 where the token has lapsed or the pool is there already.
local token = ARGV[2]
local staged = POOL .. ':' .. token

local function is_wanted()
  return redis.call('HGET', REBUILD, '') == token
    and string.sub(token, 1, #ARGV[1] + 1) == ARGV[1] .. '.'
    and not is_current()
    and redis.call('HLEN', staged) == tonumber(ARGV[3])
end

if not is_wanted() then
  redis.call('DEL', staged)
  if redis.call('HGET', REBUILD, '') == token then redis.call('DEL', REBUILD) end
  return 0
end

local told = {}
local flat = redis.call('HGETALL', REBUILD)
for i = 1, #flat, 2 do
  if flat[i] ~= '' then told[flat[i]] = flat[i + 1] end
end
local now = string.format('%.0f', read_clock())
for name, what in pairs(told) do
  local to = string.match(what, '^>(.*)$')
  local bytes = to and redis.call('HGET', staged, name)
  if bytes then
    redis.call('HDEL', staged, name)
    redis.call('HSETNX', staged, to, bytes)
  end
end
for name, what in pairs(told) do
  if what == '-' then
    redis.call('HDEL', staged, name)
  elseif string.match(what, '^%d') then
    redis.call('HSETNX', staged, name, what .. ':' .. now)
  end
end
local bytes = 0
for _, value in ipairs(redis.call('HVALS', staged)) do
  bytes = bytes + tonumber(string.match(value, '^(%d+):'))
end
redis.call('DEL', POOL, MEMBERS, REBUILD)
if redis.call('EXISTS', staged) == 1 then
  redis.call('RENAME', staged, MEMBERS)
  redis.call('PERSIST', MEMBERS)
end
redis.call('HSET', POOL, 'epoch', ARGV[1], 'members', redis.call('HLEN', MEMBERS),
  'bytes', string.format('%.0f', bytes))
return 1
