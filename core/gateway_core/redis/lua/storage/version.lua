-- Notes a version of the record, or tells the newest one.
-- KEYS 1 `gw:{<namespace>/<account>}:stored:version`, a HASH of epoch, version, whole
-- ARGV 1 the run_id of the server  2 the version, or '' for none  3 '1' where all before it is known
-- Returns the newest version, or nil where there may be newer ones that nobody has noted here.
local known = redis.call('HMGET', KEYS[1], 'epoch', 'version', 'whole')
local version, whole = tonumber(known[2]), known[3] == '1'
if known[1] ~= ARGV[1] then version, whole = 0, false end
if ARGV[2] ~= '' then
  version = math.max(version, tonumber(ARGV[2]))
  whole = whole or ARGV[3] == '1'
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'version', string.format('%.0f', version),
    'whole', whole and '1' or '0')
end
return whole and version or false
