"""OAuth 2.0 authorization server: clients, codes, grants and their tokens (contract §10)."""
