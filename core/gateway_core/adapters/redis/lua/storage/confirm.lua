-- ARGV 2 member  3 bytes  4 the most bytes of the pool
-- Returns 1, or 0 where its claim was lost and it does not fit any more.
if is_current() then
  if read_member(ARGV[2]) then return 1 end
  if USED + tonumber(ARGV[3]) > tonumber(ARGV[4]) then return 0 end
  put_member(ARGV[2], ARGV[3])
elseif is_rebuilt() then
  tell_rebuild(ARGV[2], ARGV[3])
end
return 1
