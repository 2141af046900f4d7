-- ARGV 2 date
-- Returns {charged, held, charged on the day}; error STALE.
if not is_current() then return refuse_stale() end
local money = redis.call('HMGET', MONEY, 'charged', 'held', 'day:' .. ARGV[2])
return {tonumber(money[1]), tonumber(money[2]), tonumber(money[3] or '0')}
