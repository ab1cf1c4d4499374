"""Rectangular matrices: the QR factorization and least squares."""
