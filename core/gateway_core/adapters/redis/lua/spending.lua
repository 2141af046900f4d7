-- KEYS 1 money  2 holds   ARGV 1 run_id  2 day
-- Returns {charged, held, charged on the day}; error STALE.
local money = redis.call('HMGET', KEYS[1], 'epoch', 'members', 'charged', 'held', 'day:' .. ARGV[2])
if money[1] ~= ARGV[1] or tonumber(money[2]) ~= redis.call('HLEN', KEYS[2]) then
  return redis.error_reply('STALE rebuild the money of this account')
end
return {tonumber(money[3]), tonumber(money[4]), tonumber(money[5] or '0')}
