"""Batches: input lines, lifecycle, results."""
