"""The tools: each translates its arguments to a service of the core and the result back."""
