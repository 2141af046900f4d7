-- Has the holds of calls, and the memory of their charges, begin anew in age.
-- ARGV 2 the process that has them  3 microseconds to remember a charge  then the calls
-- Returns how far the process's journal was counted by the last rebuild, then of each call 1 where its
-- hold stands, 2 where it was charged of late, else 0; error STALE.
if not is_current() then return refuse_stale() end
local now = string.format('%.0f', read_clock())
local told = {tonumber(redis.call('HGET', MONEY, 'journal:' .. ARGV[2]) or '0')}
for i = 4, #ARGV do
  local micros, subjects = read_hold(ARGV[i])
  if micros then
    redis.call('HSET', HOLDS, ARGV[i], micros .. ':' .. now .. subjects)
    told[#told + 1] = 1
  elseif redis.call('ZSCORE', CHARGED, ARGV[i]) then
    redis.call('ZADD', CHARGED, 'XX', now, ARGV[i])
    redis.call('PEXPIRE', CHARGED, string.format('%.0f', tonumber(ARGV[3]) / 1000))
    told[#told + 1] = 2
  else
    told[#told + 1] = 0
  end
end
return told
