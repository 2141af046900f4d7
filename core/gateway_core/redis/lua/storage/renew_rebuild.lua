-- ARGV 2 token  3 seconds to live
-- Returns 1, or 0 where the token has lapsed or is another's.
if redis.call('HGET', REBUILD, '') ~= ARGV[2] then return 0 end
redis.call('EXPIRE', REBUILD, ARGV[3])
return 1
