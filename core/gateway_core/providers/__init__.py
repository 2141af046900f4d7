"""Upstream providers: catalog, adapters, moderation, notices."""
