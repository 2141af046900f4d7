"""Accounts, roles, keys and guardrails."""
