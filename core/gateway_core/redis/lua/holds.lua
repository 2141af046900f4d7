-- ARGV 2 the least age in microseconds
-- Returns {task, micros, age in microseconds, subjects with a space before each, task, ...}; error STALE.
if not is_current() then return refuse_stale() end
local now, holds, found = read_clock(), redis.call('HGETALL', HOLDS), {}
for i = 1, #holds, 2 do
  local micros, since, subjects = string.match(holds[i + 1], '^(%d+):(%d+)(.*)$')
  local age = now - tonumber(since)
  if age >= tonumber(ARGV[2]) then
    found[#found + 1] = holds[i]
    found[#found + 1] = tonumber(micros)
    found[#found + 1] = age
    found[#found + 1] = subjects
  end
end
return found
