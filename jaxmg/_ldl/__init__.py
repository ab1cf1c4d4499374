"""Hermitian and symmetric matrices that need not be definite: Aasen's factorization."""
