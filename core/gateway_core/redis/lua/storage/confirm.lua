-- ARGV 2 member  3 bytes  4 the most bytes of the pool
-- Returns 1, or 0 where its claim was lost or another's and it does not fit any more.
if is_current() then
  local known = read_member(ARGV[2])
  if known == ARGV[3] then return 1 end
  if USED - tonumber(known or 0) + tonumber(ARGV[3]) > tonumber(ARGV[4]) then return 0 end
  if known then drop_member(ARGV[2], known) end
  put_member(ARGV[2], ARGV[3])
elseif is_rebuilt() then
  tell_rebuild(ARGV[2], ARGV[3])
end
return 1
