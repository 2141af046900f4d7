"""Client of the Kubernetes API: objects, informers, Secrets and the API server's clock."""
