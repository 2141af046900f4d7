"""Accounts and the other configuration kinds: readiness, balances, and declared keys."""
