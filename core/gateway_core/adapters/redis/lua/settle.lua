-- Ends a task's hold and charges in its place; without a hold nothing is charged.
-- KEYS 1 money  2 holds  3 charged
-- ARGV 1 run_id  2 task  3 charged  4 day  5 the oldest day to keep  6 microseconds to remember it
-- Returns 1, or 0 where there was no hold; error STALE.
local money = redis.call('HMGET', KEYS[1], 'epoch', 'members')
if money[1] ~= ARGV[1] or tonumber(money[2]) ~= redis.call('HLEN', KEYS[2]) then
  return redis.error_reply('STALE rebuild the money of this account')
end
local value = redis.call('HGET', KEYS[2], ARGV[2])
if not value then
  return 0
end
redis.call('HDEL', KEYS[2], ARGV[2])
redis.call('HINCRBY', KEYS[1], 'members', -1)
redis.call('HINCRBY', KEYS[1], 'held', 0 - tonumber(string.match(value, '^%d+')))
redis.call('HINCRBY', KEYS[1], 'charged', ARGV[3])
local field = 'day:' .. ARGV[4]
if redis.call('HEXISTS', KEYS[1], field) == 0 then
  -- A new day is the occasion to forget those that nobody asks for any more.
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(name, 1, 4) == 'day:' and string.sub(name, 5) < ARGV[5] then
      redis.call('HDEL', KEYS[1], name)
    end
  end
end
redis.call('HINCRBY', KEYS[1], field, ARGV[3])
if ARGV[3] ~= '0' then
  -- Who comes late must not hold for it again: the hold would be charged a second time.
  local clock = redis.call('TIME')
  local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
  redis.call('ZADD', KEYS[3], string.format('%.0f', now), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now - tonumber(ARGV[6])))
  redis.call('PEXPIRE', KEYS[3], string.format('%.0f', tonumber(ARGV[6]) / 1000))
end
return 1
