-- KEYS 1 money  2 holds   ARGV 1 run_id  2 the least age in microseconds
-- Returns {task, micros, age in microseconds, task, ...}; error STALE.
local money = redis.call('HMGET', KEYS[1], 'epoch', 'members')
if money[1] ~= ARGV[1] or tonumber(money[2]) ~= redis.call('HLEN', KEYS[2]) then
  return redis.error_reply('STALE rebuild the money of this account')
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local holds = redis.call('HGETALL', KEYS[2])
local found = {}
for i = 1, #holds, 2 do
  local micros, since = string.match(holds[i + 1], '^(%d+):(%d+)$')
  local age = now - tonumber(since)
  if age >= tonumber(ARGV[2]) then
    found[#found + 1] = holds[i]
    found[#found + 1] = tonumber(micros)
    found[#found + 1] = age
  end
end
return found
