-- Returns the bytes of all members; error STALE.
if not is_current() then return refuse_stale() end
return USED
