-- ARGV 3.. part, bytes, part, bytes, ...
if not is_current() then
  redis.call('DEL', KEYS[1])
  USED = 0
end
for i = 3, #ARGV, 2 do
  if redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then USED = USED + tonumber(ARGV[i + 1]) end
end
keep(USED)
return 1
