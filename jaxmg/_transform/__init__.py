"""Batches and derivatives of calls."""
