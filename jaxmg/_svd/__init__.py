"""Singular value and polar decompositions."""
