"""What factors that outlive a call share, and refinement with them."""
