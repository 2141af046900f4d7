"""The Kubernetes API: connection, a thin typed client, and watch-fed tables."""
