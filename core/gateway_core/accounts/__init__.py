"""Accounts, users, roles, keys and guardrails; authentication."""
