"""Kubernetes API types (the CRDs are generated from them), names, ids, errors, money."""
