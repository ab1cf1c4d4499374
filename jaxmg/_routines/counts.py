"""How many floating-point operations a routine takes. It imports nothing, so that what compares
versions of this package can read it beside any of them (benchmarks/problems.py)."""


def operations(routine, is_complex, n, nrhs=1, vectors=True):
    """The leading terms of the number of operations, real multiplications and additions.

    For syevd the count is nominal: tridiagonal reduction and, with vectors, divide and conquer
    without deflation and the back transformation.
    """
    eigenproblem = (4 / 3 + (4 / 3 + 2) * vectors) * n**3
    count = {
        "potrs": n**3 / 3 + 2 * n**2 * nrhs,
        "cho_solve": 2 * n**2 * nrhs,
        "cho_factor": n**3 / 3,
        "potri": n**3,
        "gesv": 2 / 3 * n**3 + 2 * n**2 * nrhs,
        "lu_factor": 2 / 3 * n**3,
        "lu_solve": 2 * n**2 * nrhs,
        "getri": 2 * n**3,
        "geqrf": 4 / 3 * n**3,
        "least_squares": 4 / 3 * n**3 + 4 * n**2 * nrhs,
        "syevd": eigenproblem,
        # Beside that B is factored, A reduced and the eigenvectors substituted into.
        "sygvd": n**3 / 3 + 2 * n**3 + vectors * n**3 + eigenproblem,
    }[routine]
    return count * (4 if is_complex else 1)
