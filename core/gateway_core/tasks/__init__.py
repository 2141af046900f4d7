"""Tasks: operations, validation, creation, look-up, lifecycle, rendering and archive."""
