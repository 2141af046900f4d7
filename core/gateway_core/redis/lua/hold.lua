-- Takes a hold whatever the balance and the budgets, in the place of one that differs.
-- ARGV 2 task  3 micros  4 its subjects, a space before each
-- Returns 1 where the hold is new, 0 where the task had one or was charged of late; error STALE.
if not is_current() then return refuse_stale() end
if redis.call('ZSCORE', CHARGED, ARGV[2]) then return 0 end
local micros, subjects, since = read_hold(ARGV[2])
if not micros then
  take_hold(ARGV[2], ARGV[3], ARGV[4], read_clock())
  return 1
end
if micros ~= ARGV[3] or subjects ~= ARGV[4] then
  drop_hold(ARGV[2], micros, subjects)
  take_hold(ARGV[2], ARGV[3], ARGV[4], tonumber(since))
end
return 0
