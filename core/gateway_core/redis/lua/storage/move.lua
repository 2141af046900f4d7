-- ARGV 2 member  3 its new name
if is_current() then
  local bytes = read_member(ARGV[2])
  if bytes then
    drop_member(ARGV[2], bytes)
    if not read_member(ARGV[3]) then put_member(ARGV[3], bytes) end
  end
elseif is_rebuilt() then
  local told = redis.call('HGET', REBUILD, ARGV[2])
  if told and string.match(told, '^%d') then
    -- it came while the record was read, and may be in nothing that was read
    tell_rebuild(ARGV[2], '-')
    tell_rebuild(ARGV[3], told)
  elseif not told then
    tell_rebuild(ARGV[2], '>' .. ARGV[3])
  end
end
return 1
