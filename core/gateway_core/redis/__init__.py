"""Connection to Redis 6.2 or newer, and the Lua scripts."""
