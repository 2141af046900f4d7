-- ARGV 2 token
-- Lets another one begin, unless the token has lapsed.
if redis.call('HGET', REBUILD, '') == ARGV[2] then redis.call('DEL', REBUILD) end
return 1
