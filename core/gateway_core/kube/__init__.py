"""Client of the Kubernetes API: objects, lists, informers, Secrets and the API server's clock."""
