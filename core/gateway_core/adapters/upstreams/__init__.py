"""Upstream providers as their resources declare them; `registry.build_upstream` is the door."""
