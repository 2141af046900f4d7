-- ARGV for each budget: subject, window, grain, first bucket
-- Returns {charged in the window, held, oldest bucket that counts or -1} of each; error STALE.
if not is_current() then return refuse_stale() end
local told = {}
for i = 2, #ARGV, 4 do
  local one = tell_budget(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  if not one then
    disown()
    return refuse_stale()
  end
  told[#told + 1] = one
end
return told
