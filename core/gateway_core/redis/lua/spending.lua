-- ARGV 2 date
-- Returns {charged, held, charged on the day}; error STALE.
if not is_current() then return refuse_stale() end
return {CHARGED_IN_ALL, HELD_IN_ALL, tonumber(redis.call('HGET', MONEY, 'day:' .. ARGV[2]) or '0')}
