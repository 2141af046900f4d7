-- Ends a task's hold and charges in its place; without a hold nothing is charged.
-- ARGV 2 to 6 as in charge.lua  7 task  then charges
-- Returns 1, or 0 where there was no hold; error STALE.
if not is_current() then return refuse_stale() end
local ended = end_hold(ARGV[7], 8, read_clock())
if ended == nil then return refuse_stale() end
return ended and 1 or 0
