-- ARGV 2 token
-- Lets another one begin, unless the token has lapsed.
if redis.call('GET', PREFIX .. 'rebuild') == ARGV[2] then
  redis.call('DEL', PREFIX .. 'rebuild')
end
return 1
