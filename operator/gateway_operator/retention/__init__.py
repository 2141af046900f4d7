"""What goes once nothing asks for it: finished tasks, days of usage, bytes of the past."""
