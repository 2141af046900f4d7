-- Counts one call in the account's rate and, where a task is named, takes its hold.
-- KEYS 1 rate: LIST of the microseconds at which calls were counted, oldest first
--      2 money: HASH of epoch, held, charged, members, day:<date>   3 holds: HASH task -> micros:microseconds
--      4 charged: ZSET of tasks charged of late, by the microsecond
-- ARGV 1 run_id  2 limit  3 task, or ''  4 micros  5 funds, or '' for unlimited
--      6 '1' where the call counts in the rate, '0' where only its hold is wanted
-- Returns {remaining, reset in Unix seconds, seconds to wait or 0 where admitted, outcome of the hold}
local WINDOW = 60000000
local NOT_ASKED, HELD, UNDERFUNDED, STALE = 0, 1, 2, 3

local limit = tonumber(ARGV[2])
local counted = ARGV[6] ~= '0'
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- Kept in order even where the clock is set back; set back by a whole window, the log tells nothing.
local last = tonumber(redis.call('LINDEX', KEYS[1], -1) or '0')
if last > now + WINDOW then
  redis.call('DEL', KEYS[1])
  last = 0
end
local oldest = tonumber(redis.call('LINDEX', KEYS[1], 0) or now)
while oldest <= now - WINDOW do
  redis.call('LPOP', KEYS[1])
  oldest = tonumber(redis.call('LINDEX', KEYS[1], 0) or now)
end

local count = redis.call('LLEN', KEYS[1])
if counted and count >= limit then
  -- Where the limit was lowered meanwhile, more than the oldest must leave before one fits.
  local free = tonumber(redis.call('LINDEX', KEYS[1], count - limit) or now) + WINDOW
  return {0, math.ceil(free / 1000000), math.max(1, math.ceil((free - now) / 1000000)), NOT_ASKED}
end
if counted then
  redis.call('RPUSH', KEYS[1], string.format('%.0f', math.max(now, last)))
  redis.call('EXPIRE', KEYS[1], 61)
  count = count + 1
end

local outcome = NOT_ASKED
if ARGV[3] ~= '' then
  local money = redis.call('HMGET', KEYS[2], 'epoch', 'members', 'held', 'charged')
  if money[1] ~= ARGV[1] or tonumber(money[2]) ~= redis.call('HLEN', KEYS[3]) then
    outcome = STALE
  elseif redis.call('HEXISTS', KEYS[3], ARGV[3]) == 1 or redis.call('ZSCORE', KEYS[4], ARGV[3]) then
    outcome = HELD
  elseif ARGV[5] ~= '' and tonumber(money[3]) + tonumber(money[4]) + tonumber(ARGV[4]) > tonumber(ARGV[5]) then
    outcome = UNDERFUNDED
  else
    outcome = HELD
    redis.call('HSET', KEYS[3], ARGV[3], ARGV[4] .. ':' .. string.format('%.0f', now))
    redis.call('HINCRBY', KEYS[2], 'held', ARGV[4])
    redis.call('HINCRBY', KEYS[2], 'members', 1)
  end
end
return {math.max(0, limit - count), math.ceil((oldest + WINDOW) / 1000000), 0, outcome}
