-- Counts one call in a rate of the account that no money depends on.
-- ARGV 2 the rate's name  3 calls a minute
-- Returns the seconds to wait, 0 where the call was counted.
local now = read_clock()
local log = open_log(PREFIX .. 'rate:' .. ARGV[2], tonumber(ARGV[3]), now)
if log.count >= log.limit then return tell_wait(find_free(log, now), now) end
count_call(log, now)
return 0
