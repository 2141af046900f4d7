-- Returns {the bytes of all members, how many members}; error STALE.
if not is_current() then return refuse_stale() end
return {USED, redis.call('HLEN', MEMBERS)}
