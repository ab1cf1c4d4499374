"""Stacks of matrices (count, m, n) on one device: the table of the ways to compute
with them, the plugin's operations, JAX's LAPACK, products, triangles, rotations and scaling."""
