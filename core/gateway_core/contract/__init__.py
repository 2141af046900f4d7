"""The words of the gateway: kinds, conditions, names, ids, keys, errors. Imports pydantic only."""
