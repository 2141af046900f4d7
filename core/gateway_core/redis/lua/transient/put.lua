-- Store a value of a group, which keeps so many: the oldest make room.
-- KEYS 1 the group, a list of its values' keys, the oldest first  2 the value's key
-- ARGV 2 the value  3 its seconds  4 most values  5 seconds of the group
local live = {}
for _, key in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if redis.call('EXISTS', key) == 1 then live[#live + 1] = key end
end
local spare = #live + 1 - tonumber(ARGV[4])
redis.call('DEL', KEYS[1])
for place, key in ipairs(live) do
  if place <= spare then
    redis.call('DEL', key)
  else
    redis.call('RPUSH', KEYS[1], key)
  end
end
redis.call('RPUSH', KEYS[1], KEYS[2])
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return 1
