"""Admission of calls."""
