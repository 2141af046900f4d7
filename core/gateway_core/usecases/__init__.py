"""Steps that several processes take alike, on ports alone."""
