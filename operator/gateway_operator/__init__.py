"""The operator: carries what is recorded in the Kubernetes API to its end."""
