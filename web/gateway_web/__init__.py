"""What all HTTP processes share: connections, request middleware, responses, shutdown."""
