"""What admins do over kubectl credentials: accounts, users, keys, guardrails, funds, usage, tasks.

A module for each noun of the command line; all act on the gateway's objects alone.
"""
