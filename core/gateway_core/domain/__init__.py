"""The decisions, pure: no I/O, no clock of their own, no framework."""
