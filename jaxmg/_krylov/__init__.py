"""Iterations that multiply by a matrix, and what preconditions them."""
