"""The Kubernetes API for the commands: one client, and refusals that say what to do."""

FIELD_MANAGER = "gatewayctl"
