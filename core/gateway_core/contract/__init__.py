"""The words of the gateway: kinds, conditions, names, ids, keys and errors. Imports pydantic only."""
