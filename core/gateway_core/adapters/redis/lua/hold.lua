-- Takes a hold whatever the balance.
-- KEYS 1 money  2 holds  3 charged   ARGV 1 run_id  2 task  3 micros
-- Returns 1 where the hold is new, 0 where the task has one or was charged of late; error STALE.
local money = redis.call('HMGET', KEYS[1], 'epoch', 'members')
if money[1] ~= ARGV[1] or tonumber(money[2]) ~= redis.call('HLEN', KEYS[2]) then
  return redis.error_reply('STALE rebuild the money of this account')
end
if redis.call('ZSCORE', KEYS[3], ARGV[2]) then
  return 0
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
if redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3] .. ':' .. string.format('%.0f', now)) == 0 then
  return 0
end
redis.call('HINCRBY', KEYS[1], 'held', ARGV[3])
redis.call('HINCRBY', KEYS[1], 'members', 1)
return 1
