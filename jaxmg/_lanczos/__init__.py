"""A few eigenpairs and singular triplets of large matrices and operators, by block Lanczos."""
