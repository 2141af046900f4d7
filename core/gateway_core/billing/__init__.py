"""Prices, limits, reservations, the ledger, usage and its journal."""
