"""Arrays of bfloat16 and float16 in programs of `jaxmg.linalg`, which compute with them in float32.

Results are rounded to the dtype of the arrays, except those that a program declares as ``single``.
The conversions are part of the program, so that XLA can fuse them and JAX differentiates them.
"""

import dataclasses
import functools

import jax.numpy as jnp

from jaxmg._call import checks

# The part of a matrix that is read: all of one that is Hermitian, but for rounding to its dtype.
_HERMITIAN = "hermitian"
_ROUNDED = {f"{_HERMITIAN} in {dtype}": dtype for dtype in checks.HALVES}


def is_half(array):
    return str(getattr(array, "dtype", "")) in checks.HALVES


def widened(array):
    """Converts bfloat16 and float16 to float32."""
    return array.astype(jnp.float32) if is_half(array) else array


def narrowed(array, dtype):
    """Rounds float32 to a dtype; None: doesn't."""
    return array.astype(dtype) if dtype is not None and array.dtype == jnp.float32 else array


def promoted(b, factor):
    """Converts bfloat16 and float16 to the wider dtype of a factor, as JAX promotes both, but also
    with ``jax_numpy_dtype_promotion="strict"``: factors of such matrices are float32."""
    wide = is_half(b) and str(getattr(factor, "dtype", "")) in checks.DTYPES
    return b.astype(factor.dtype) if wide else b


def dtype_of(array):
    """Returns bfloat16 or float16 if this is the dtype of ``array``, else None."""
    return str(array.dtype) if is_half(array) else None


def read_of(array):
    """Returns the part that is read of a Hermitian matrix of this dtype."""
    return f"{_HERMITIAN} in {array.dtype}" if is_half(array) else _HERMITIAN


def rounding(read):
    """Returns eps of the dtype to which a matrix was rounded that is read as `read_of` says; 0 if
    it was rounded to the dtype that it has."""
    return float(jnp.finfo(_ROUNDED[read]).eps) if read in _ROUNDED else 0.0


@functools.lru_cache(maxsize=512)
def of(program, dtype):
    """Returns the `compositions.Program` that computes ``program`` for arrays of this dtype."""

    def rounded(results):
        return tuple(
            narrowed(x, None if i in program.single else dtype) for i, x in enumerate(results)
        )

    def options_of(options):
        return tuple(f"{x} in {dtype}" if x == _HERMITIAN else x for x in options)

    def function(call, *arrays):
        call = dataclasses.replace(call, attributes=options_of(call.attributes))
        return rounded(program.function(call, *map(widened, arrays)))

    def compute_stacks(platform, options, *stacks):
        return rounded(program.compute_stacks(platform, options_of(options), *map(widened, stacks)))

    return dataclasses.replace(
        program, function=function, compute_stacks=program.compute_stacks and compute_stacks
    )
