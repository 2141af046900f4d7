"""The JSON operations, a module for each noun: paths, types, and what is required of the caller."""
