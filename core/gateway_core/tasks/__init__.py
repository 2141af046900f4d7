"""Tasks: operations, validation, lifecycle, rendering and archive."""
