"""Batches: validated, run line by line against a moderation provider, and turned into Files."""
