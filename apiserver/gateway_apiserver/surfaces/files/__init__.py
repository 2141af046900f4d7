"""`/v1/files`: immutable files of an account (contract §3)."""
