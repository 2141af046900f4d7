"""Retention: removal of ended runs, revoked keys and expired bytes, and of the load on etcd."""
