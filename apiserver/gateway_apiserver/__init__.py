"""The API process and the media host: HTTP on one side, the core's ports on the other."""
