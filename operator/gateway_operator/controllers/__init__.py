"""One module for each kind that the operator works on."""
