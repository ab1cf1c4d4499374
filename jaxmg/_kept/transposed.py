"""Operations on a factor that take ``trans``, as in `scipy.linalg`."""

import jax.numpy as jnp

from jaxmg._call import checks

_NAMES = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}


def apply(routine, matrix, parts, factor, b, operations, trans):
    """Applies an operation with op(M) to b.

    Args:
        matrix: M's name, for errors.
        parts: function of (routine, factor) that returns the factor without its arrays, which
            applies operations, and the arrays.
        operations: the operations for "N" and "C". The transpose uses the latter.
        trans: the operation to apply: 0 or "N", 1 or "T", 2 or "C".
    """
    how = checked(routine, matrix, trans)
    if how == "T" and jnp.issubdtype(factor.dtype, jnp.complexfloating):
        checks.array(routine, "b", b, checks.ALL)  # M^T b = conj(M^H conj(b))
        x = apply(routine, matrix, parts, factor, jnp.conj(b), operations, "C")
        return jnp.conj(x)
    static, arrays = parts(routine, factor)
    return static.apply(operations["C" if how == "T" else how], *arrays, b)


def checked(routine, matrix, trans):
    """Returns the `name` of ``trans``; raises if it is invalid."""
    how = name(trans)
    if how is None:
        raise ValueError(
            f"{routine}: trans must be 0 or 'N' ({matrix}), 1 or 'T' (its transpose), or 2 or 'C' "
            f"(its conjugate transpose); got {trans!r}"
        )
    return how


def name(trans):
    """Returns "N", "T" or "C"; None if ``trans`` isn't one of SciPy's names for these."""
    if not isinstance(trans, str):
        try:
            trans = checks.index(trans)
        except TypeError:
            return None
    return _NAMES.get(trans)
