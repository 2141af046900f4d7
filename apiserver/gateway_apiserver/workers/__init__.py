"""Several API processes on one port: their parent, and its link to each of them."""
