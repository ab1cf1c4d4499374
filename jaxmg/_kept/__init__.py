"""Parts that are common to factors that outlive a call, and iterative refinement with factors."""
