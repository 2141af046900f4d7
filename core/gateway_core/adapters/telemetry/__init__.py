"""What every process tells Prometheus of itself, whatever it does."""
