"""The object store: bytes in a directory."""
