"""Routes of the OAuth authorization server."""
