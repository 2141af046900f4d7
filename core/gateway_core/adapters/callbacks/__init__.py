"""Callbacks over HTTP, to addresses that clients name."""
