"""Tasks: adopted, submitted, polled, delivered and closed; a module for each step."""
