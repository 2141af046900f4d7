"""Callbacks: the client, its limiter and the signing keys."""
