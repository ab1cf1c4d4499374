"""Algorithms for stacks of matrices (count, m, n) on one device, by JAX and by the plugin."""
