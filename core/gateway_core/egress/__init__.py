"""Guard of outgoing connections to addresses that clients or providers name."""
