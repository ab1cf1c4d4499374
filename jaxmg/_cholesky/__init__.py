"""Positive definite matrices: the Cholesky factorization."""
