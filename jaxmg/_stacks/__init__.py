"""Algorithms for stacks of matrices (count, m, n) that a device computes at once, by JAX alone."""
