"""Files: taken in, kept until they expire, and removed with their bytes."""
