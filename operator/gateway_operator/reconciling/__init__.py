"""Holds the record, the object store and the storage ledger against each other."""
