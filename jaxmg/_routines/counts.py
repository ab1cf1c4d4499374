"""How many floating-point operations a routine takes. It imports nothing, so that what compares
versions of this package can read it beside any of them (benchmarks/problems.py)."""


def operations(routine, is_complex, n, nrhs=1, vectors=True):
    """The leading terms of the number of operations, real multiplications and additions.

    For syevd the count is nominal: tridiagonal reduction and, with vectors, divide and conquer
    without deflation and the back transformation.
    """
    count = {
        "potrs": n**3 / 3 + 2 * n**2 * nrhs,
        "cho_solve": 2 * n**2 * nrhs,
        "potri": n**3,
        "syevd": (4 / 3 + (4 / 3 + 2) * vectors) * n**3,
    }[routine]
    return count * (4 if is_complex else 1)
