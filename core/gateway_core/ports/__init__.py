"""What the gateway needs from outside, as protocols that state their guarantees."""
