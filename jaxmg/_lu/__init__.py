"""General square matrices: the LU factorization."""
