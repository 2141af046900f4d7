-- ARGV 3 part  4 bytes  5 the most parts  6 the most bytes
-- Returns 1, or 0 where a cap would be passed; error STALE.
if not is_current() then return redis.error_reply('STALE list the parts of this upload') end
local before = redis.call('HGET', KEYS[1], ARGV[3])
-- one field more than there are parts
local parts = redis.call('HLEN', KEYS[1]) - (before and 1 or 0)
local bytes = USED - tonumber(before or '0') + tonumber(ARGV[4])
if parts > tonumber(ARGV[5]) or bytes > tonumber(ARGV[6]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
keep(bytes)
return 1
