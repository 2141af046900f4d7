-- ARGV 3 part
if is_current() then
  local bytes = redis.call('HGET', KEYS[1], ARGV[3])
  if bytes then
    redis.call('HDEL', KEYS[1], ARGV[3])
    keep(USED - tonumber(bytes))
  end
end
return 1
