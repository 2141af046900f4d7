-- ARGV 2 member
if is_current() then
  local bytes = read_member(ARGV[2])
  if bytes then drop_member(ARGV[2], bytes) end
elseif is_rebuilt() then
  tell_rebuild(ARGV[2], '-')
end
return 1
