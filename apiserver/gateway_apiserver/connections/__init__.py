"""Client connections: their number, their pace, and who the peer is."""
