-- Puts staged holds and the ledger's sums in place of the account's money.
-- KEYS 1 money  2 holds  3 rebuild  4 staged holds
-- ARGV 1 run_id  2 token  3 charged  4 held  5 members  then pairs of day, micros
-- Returns 1, or 0 where the token has lapsed or the money is there already.
if redis.call('GET', KEYS[3]) ~= ARGV[2] then
  redis.call('DEL', KEYS[4])
  return 0
end
redis.call('DEL', KEYS[3])
local money = redis.call('HMGET', KEYS[1], 'epoch', 'members')
local current = money[1] == ARGV[1] and tonumber(money[2]) == redis.call('HLEN', KEYS[2])
local complete = redis.call('HLEN', KEYS[4]) == tonumber(ARGV[5])
local of_this_run = string.sub(ARGV[2], 1, #ARGV[1] + 1) == ARGV[1] .. '.'
if current or not complete or not of_this_run then
  redis.call('DEL', KEYS[4])
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
if ARGV[5] ~= '0' then
  redis.call('RENAME', KEYS[4], KEYS[2])
  redis.call('PERSIST', KEYS[2])
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'charged', ARGV[3], 'held', ARGV[4], 'members', ARGV[5])
for i = 6, #ARGV, 2 do
  redis.call('HSET', KEYS[1], 'day:' .. ARGV[i], ARGV[i + 1])
end
return 1
