"""Functions of square matrices that choose between factorizations."""
