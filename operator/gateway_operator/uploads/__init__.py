"""Uploads: expired by the clock, and settled once they have an outcome."""
