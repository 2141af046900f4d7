-- KEYS 1 rebuild   ARGV 1 run_id  2 token
-- Lets another one begin, unless the token has lapsed.
if redis.call('GET', KEYS[1]) == ARGV[2] then
  redis.call('DEL', KEYS[1])
end
return 1
