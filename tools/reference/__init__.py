"""Pages of docs/reference, each built from what the processes themselves use."""
