"""The counters on Redis 6.2 or newer: exact rates and money in flight, one round trip a call."""
