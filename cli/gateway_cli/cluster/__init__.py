"""The Kubernetes API as gatewayctl's commands see it: calls, and what their refusals mean."""
