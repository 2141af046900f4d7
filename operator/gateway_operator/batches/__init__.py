"""Batches: their lines are checked, run against a moderation provider and put into Files."""
