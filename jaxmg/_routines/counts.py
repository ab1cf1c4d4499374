"""Numbers of floating-point operations of the routines.

The module imports nothing, so that a script that compares versions of this package can load it
with any of them (benchmarks/problems.py).
"""


def operations(routine, is_complex, n, nrhs=1, vectors=True):
    """Returns the leading terms of the number of real multiplications and additions.

    For syevd the count is nominal: the tridiagonal reduction, and with vectors also divide and
    conquer without deflation and the back transformation.
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
        # Factor B, reduce A, substitute into the eigenvectors, and solve the eigenproblem.
        "sygvd": n**3 / 3 + 2 * n**3 + vectors * n**3 + eigenproblem,
    }[routine]
    return count * (4 if is_complex else 1)
