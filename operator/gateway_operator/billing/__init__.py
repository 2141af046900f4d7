"""Billing: the usage journal, the aggregation of usage, and the settlement of reservations."""
