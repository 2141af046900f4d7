"""Uploads: ended by the clock, and settled once their outcome stands."""
