"""Routes of the public API, one module or folder for each surface."""
