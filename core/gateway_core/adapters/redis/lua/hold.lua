-- Takes a hold whatever the balance and the budgets.
-- ARGV 2 task  3 micros  4 its subjects, a space before each
-- Returns 1 where the hold is new, 0 where the task has one or was charged of late; error STALE.
if not is_current() then return refuse_stale() end
if redis.call('ZSCORE', CHARGED, ARGV[2]) or redis.call('HEXISTS', HOLDS, ARGV[2]) == 1 then
  return 0
end
take_hold(ARGV[2], ARGV[3], ARGV[4], read_clock())
return 1
