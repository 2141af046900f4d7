"""Admission of calls: rates, limits, reservations, and calls without objects."""
