-- ARGV 2 random  3 seconds to live
-- Returns the token, or nil while another one lives or where the pool is there. It names the server's run, so that one restored
-- from a snapshot opens nothing.
if is_current() then return false end
local token = redis.call('HGET', REBUILD, '')
if token and string.sub(token, 1, #ARGV[1] + 1) == ARGV[1] .. '.' then return false end
token = ARGV[1] .. '.' .. ARGV[2]
redis.call('DEL', REBUILD)
redis.call('HSET', REBUILD, '', token)
redis.call('EXPIRE', REBUILD, ARGV[3])
return token
