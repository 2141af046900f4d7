"""`/v1/uploads`: files that arrive in parts (contract §4)."""
