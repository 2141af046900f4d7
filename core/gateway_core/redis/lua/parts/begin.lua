-- KEYS 1 `gw:{<namespace>/<account>}:uploads`, a ZSET of pending Upload -> microseconds of its expiry
-- ARGV 2 seconds until the expiry  3 upload  4 the most Uploads
-- Returns 1, or 0 where the account has the most.
local now = read_clock()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if not redis.call('ZSCORE', KEYS[1], ARGV[3]) then
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2]) * 1000000), ARGV[3])
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
return 1
