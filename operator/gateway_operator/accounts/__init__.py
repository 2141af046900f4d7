"""`Ready` of the standing kinds, and the keys that the operator makes."""
