-- ARGV 2 the least age in microseconds
-- Returns {member, bytes, age in microseconds, member, ...}; error STALE.
if not is_current() then return refuse_stale() end
local now, members, found = read_clock(), redis.call('HGETALL', MEMBERS), {}
for i = 1, #members, 2 do
  local bytes, since = string.match(members[i + 1], '^(%d+):(%d+)$')
  local age = now - tonumber(since)
  if age >= tonumber(ARGV[2]) then
    found[#found + 1] = members[i]
    found[#found + 1] = tonumber(bytes)
    found[#found + 1] = age
  end
end
return found
