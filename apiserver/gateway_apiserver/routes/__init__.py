"""What is served on which path, one module for each surface."""
