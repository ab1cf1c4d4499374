"""Factors that outlive a call, and refinement with them."""
