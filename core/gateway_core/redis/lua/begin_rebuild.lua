-- ARGV 2 random  3 seconds to live
-- Returns the token, or nil while another one lives. It names the server's run, so that one restored
-- from a snapshot opens nothing.
local token = ARGV[1] .. '.' .. ARGV[2]
if redis.call('SET', PREFIX .. 'rebuild', token, 'NX', 'EX', ARGV[3]) then
  return token
end
return false
