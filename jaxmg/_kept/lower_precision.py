"""Solving with a factor in lower precision: the arguments, and functions for all kinds of
factors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import checks, ffi, record
from jaxmg._kept import correction

# `iterations` if the solution comes from a factorization in A's own precision, as in LAPACK's
# dsposv: the factorization in lower precision failed; refinement did not converge.
NOT_FACTORED = -3
NOT_CONVERGED = -(correction.LIMIT + 1)


@dataclasses.dataclass(frozen=True)
class _Lower:
    """A precision of factorizations.

    Attributes:
        products: the precision of the factorization's products (checks.PRODUCTS).
        shift: number added to the unit diagonal, so that a nearly singular A is positive definite
            after rounding (N. J. Higham and S. Pranesh, "Exploiting lower precision arithmetic in
            solving symmetric positive definite linear systems and least squares problems", SIAM J.
            Sci. Comput. 43, 2021). It is about the error of the products: a larger one costs
            iterations.
    """

    products: int
    shift: float


PRECISIONS = {
    "float32": _Lower(checks.DEFAULT, 2.0**-24),
    "tf32": _Lower(1, 2.0**-14),
    "BF16_BF16_F32_X3": _Lower(2, 2.0**-20),
    "BF16_BF16_F32_X6": _Lower(3, 2.0**-23),
    "F16_F16_F32_X3": _Lower(4, 2.0**-23),
}
NAMES = (None, "auto", *PRECISIONS)
# The precision for "auto", by (whether on GPUs, whether float64 or complex128): the fastest one
# over the most conditions (docs/laboratory.md).
_AUTO = {
    (True, True): "BF16_BF16_F32_X3",
    (True, False): "BF16_BF16_F32_X3",
    (False, True): "float32",
    (False, False): "tf32",
}


# Number of elements that are rounded at a time: few for a large matrix, and many for a GPU.
_PIECE = 2**24
LOWER_DTYPES = (("float64", "float32"), ("complex128", "complex64"))


def check(routine, name, dtype, backend, platform):
    """Checks ``refine``; returns the precision of the factorization, with "auto" resolved."""
    name = checks.plain_precision(name)
    if isinstance(name, str) and 0 < checks.PRODUCTS.get(name, 0) < checks.DEFAULT:
        name = checks.precision_of(checks.PRODUCTS[name])
    if not isinstance(name, str | None) or name not in NAMES:
        raise ValueError(
            f"{routine}: refine must be one of {', '.join(map(repr, NAMES))}; got {name!r}"
        )
    wide = str(dtype) in dict(LOWER_DTYPES)
    if name == "auto":
        name = _AUTO[platform == "gpu", wide]
    if name == "float32" and not wide:
        raise ValueError(
            f"{routine}: refine='float32' is for float64 and complex128; a has dtype {dtype}. Pass "
            f"one of {', '.join(repr(n) for n in PRECISIONS if n != name)} as refine"
        )
    if backend != "native":
        raise ValueError(
            f"{routine}: refine={name!r} needs backend 'native' (or 'auto'); got {backend!r}"
        )
    return name


OPTION = record.Option("refine", "refine", check)


def check_options(routine, refine, backend, *, precision=None, **refused):
    """Raises for options that exclude ``refine``; returns the backend to ask for."""
    if refine is None:
        raise ValueError(
            f"{routine}: return_iterations=True needs refine; pass refine='auto', or "
            f"one of {', '.join(map(repr, PRECISIONS))}"
        )
    if precision not in (None, "highest"):
        raise ValueError(
            f"{routine}: precision={precision!r} and refine={refine!r} both name the precision of "
            "the factorization; with refine leave precision out"
        )
    for argument, value in refused.items():
        if value:
            raise ValueError(
                f"{routine}: {argument}=True isn't possible with refine={refine!r}: a factor in "
                "lower precision would compute it with only that accuracy; leave refine out"
            )
    return "native" if backend == "auto" else backend


def products_of(refine):
    """Returns the precision of the products of a factorization (checks.PRODUCTS)."""
    return PRECISIONS[refine].products


def lower_dtype(dtype):
    return jnp.dtype(dict(LOWER_DTYPES).get(str(dtype), str(dtype)))


def piece_height(rows, n):
    """Returns the number of a rank's rows that are rounded at a time."""
    return min(max(_PIECE // n, 1), rows)


def plain_solve(native, call, coordinates, a, b, *numbers):
    """Returns all results of a native routine that solves in A's own precision.

    Args:
        numbers: shapes and dtypes of the results between x and the status.
    """
    return ffi.call(
        f"jaxmg_{native}", call.layout, call.tile, "native", (coordinates, a, b),
        (
            jax.ShapeDtypeStruct(a.shape, a.dtype),
            jax.ShapeDtypeStruct(b.shape, b.dtype),
            *numbers,
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ),
        n=a.shape[1], products=checks.DEFAULT, check_b=False,
    )  # fmt: skip


def or_plain(call, a, b, factored, solution, plain):
    """Returns the refined solution if it is good, else a plain one: (a, x, status, iterations).

    Args:
        factored: whether the factorization in lower precision has succeeded.
        solution: `correction.Refined`.
        plain: function of (a, b) that solves in A's own precision in A's memory, and returns (that
            memory, x, status).
    """
    good = factored & solution.accepted

    def keep(a, b, x, good):
        return a, x, jnp.zeros((1,), jnp.int32)

    def factor_again(a, b, x, good):
        if not call.in_place:
            # The routine works on a copy. If it is made here, not by XLA before the branch, it
            # takes the memory where the factor was.
            a = jnp.where(good, 0, a)
        return plain(a, b)

    a, x, status = jax.lax.cond(good, keep, factor_again, a, b, solution.x, good)
    failed = jnp.where(factored, NOT_CONVERGED, NOT_FACTORED)
    return a, x, status, jnp.where(good, solution.steps, failed).astype(jnp.int32)[None]


def native_like(target, layout, tile, operands, **attributes):
    """Calls a native routine whose only result is like the last operand, equal on all ranks."""
    last = operands[-1]
    return ffi.call(
        target, layout, tile, "native", operands, (jax.ShapeDtypeStruct(last.shape, last.dtype),),
        in_place=0, differing=0, n=last.shape[0], **attributes,
    )[0]  # fmt: skip


def after(coordinates, *arrays):
    """Returns ``coordinates`` for a native call that must start after ``arrays`` are computed.

    A call that fails does so on all ranks, which then leave the program. If a second call, or a
    collective of XLA's, ran at the same time, a rank that has left would be missing in it, and the
    others would wait.
    """
    never = [array.ravel()[0].real < -jnp.inf for array in arrays if array.size]
    return coordinates + sum(value.astype(coordinates.dtype) for value in never)


def power_of_two(values):
    """Returns 2^e with values / 2^e in [1, 2); 1 for zero, denormals, NaN and infinity."""
    kind = jnp.finfo(values.dtype)
    whole = np.array(np.inf, values.dtype).view(f"uint{kind.bits}")  # all ones in the exponent
    bits = jax.lax.bitcast_convert_type(values, whole.dtype) & whole
    power = jax.lax.bitcast_convert_type(bits, values.dtype)
    return jnp.where((power > 0) & (power < np.inf), power, 1)
