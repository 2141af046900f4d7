"""Kubernetes API types, from which the CRDs are generated; names, ids, errors and money."""
