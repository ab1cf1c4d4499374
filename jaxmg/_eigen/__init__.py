"""Eigenvalues and eigenvectors of Hermitian matrices."""
