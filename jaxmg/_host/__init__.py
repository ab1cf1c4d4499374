"""Factorizations of matrices in host memory, which the devices read by block columns."""
