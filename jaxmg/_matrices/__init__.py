"""Matrices on the ranks by rows: products, symmetry and norms."""
