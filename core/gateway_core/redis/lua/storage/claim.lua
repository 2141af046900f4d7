-- ARGV 2 member  3 bytes  4 the most bytes of the pool  5 the most members of it, '' for no such limit
-- Returns 1, or 0 where it does not fit; error STALE.
if not is_current() then return refuse_stale() end
if read_member(ARGV[2]) then return 1 end
if USED + tonumber(ARGV[3]) > tonumber(ARGV[4]) then return 0 end
if ARGV[5] ~= '' and redis.call('HLEN', MEMBERS) >= tonumber(ARGV[5]) then return 0 end
put_member(ARGV[2], ARGV[3])
return 1
