"""Callbacks: schedule, signing and client."""
