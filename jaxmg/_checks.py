"""Errors for calls that can't be right, raised before anything is traced or run.

Every message names the routine, the argument, what it was and what it must be.
"""

import math
import operator

import jax
import numpy as np

DTYPES = ("float32", "float64", "complex64", "complex128")
PRECISIONS = (None, "highest", "tf32")
BACKENDS = ("auto", "native", "cusolvermg")
# cuSOLVERMg's inverse is wrong beyond this column where several GPUs share it (docs/cuda.md).
_MG_POTRI_ORDER = 2048


def array(routine, name, value):
    """Checks that ``value`` is an array of a supported dtype."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(
            f"{routine}: {name} must be a JAX or NumPy array; got {type(value).__name__}"
        )
    if str(value.dtype) not in DTYPES:
        raise TypeError(
            f"{routine}: {name} has dtype {value.dtype}; the supported dtypes are "
            f"{', '.join(DTYPES)}. Convert it with {name}.astype(...)"
        )
    if str(value.dtype) in ("float64", "complex128") and not jax.config.jax_enable_x64:
        raise ValueError(
            f"{routine}: {name} has dtype {value.dtype}, which JAX only computes with in 64-bit "
            "mode. Switch it on with jax.config.update('jax_enable_x64', True) or the environment "
            f"variable JAX_ENABLE_X64=1, or pass {name} in single precision"
        )


def square(routine, name, value):
    """Checks that ``value`` is an n x n matrix of a supported dtype; returns n."""
    array(routine, name, value)
    if value.ndim != 2 or value.shape[0] != value.shape[1]:
        raise ValueError(
            f"{routine}: {name} must be a square matrix of shape (n, n); "
            f"it has shape {tuple(value.shape)}"
        )
    return value.shape[1]


def right_hand_side(routine, a, b):
    """Checks that ``b`` fits the columns of ``a``."""
    array(routine, "b", b)
    n = a.shape[1]
    if b.ndim not in (1, 2) or b.shape[0] != n:
        raise ValueError(
            f"{routine}: b must have shape ({n},) or ({n}, nrhs) for a of shape "
            f"{tuple(a.shape)}; it has shape {tuple(b.shape)}"
        )
    if a.dtype != b.dtype:
        raise TypeError(
            f"{routine}: a and b must have one dtype; a has {a.dtype} and b has {b.dtype}. "
            "Convert one of them with .astype(...)"
        )


def tile(routine, T_A, required=False):
    """The tile width as an int; 0 stands for "the plugin chooses"."""
    if T_A is None and not required:
        return 0
    try:
        if isinstance(T_A, (bool, np.bool_)):
            raise TypeError
        width = operator.index(T_A)
    except TypeError:
        raise TypeError(
            f"{routine}: T_A, the tile width, must be an integer of at least 1"
            f"{'' if required else ' or None'}; got {T_A!r}"
        ) from None
    if width < 1:
        raise ValueError(f"{routine}: T_A, the tile width, must be at least 1; got {width}")
    return width


def padding(routine, name, size, multiple, pad):
    """Checks that ``size`` rows need no padding where ``pad`` forbids it."""
    if not pad and size % multiple:
        raise ValueError(
            f"{routine}: with pad=False the {size} rows of {name} must be a multiple of {multiple} "
            f"(ranks{' times T_A' if routine == 'cyclic_1d' else ''}); pass pad=True, or "
            f"{name} with {math.ceil(size / multiple) * multiple} rows"
        )


def non_negative(routine, name, value):
    """Checks a count in the layout helpers; returns it as an int."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{routine}: {name} must be an integer; got {value!r}") from None
    if count < 0:
        raise ValueError(f"{routine}: {name} must not be negative; got {count}")
    return count


def positive(routine, name, value):
    """Checks a size in the layout helpers; returns it as an int."""
    count = non_negative(routine, name, value)
    if count < 1:
        raise ValueError(f"{routine}: {name} must be at least 1; got {count}")
    return count


def precision(routine, name, dtype, backend):
    """Checks ``precision=`` against the resolved backend; whether products are to be in TF32."""
    if name not in PRECISIONS:
        raise ValueError(
            f"{routine}: precision must be one of {', '.join(map(repr, PRECISIONS))}; got {name!r}"
        )
    if name != "tf32":
        return False
    if str(dtype) not in ("float32", "complex64"):
        raise ValueError(
            f"{routine}: precision='tf32' is for float32 and complex64; a has dtype {dtype}"
        )
    if backend != "native":
        raise ValueError(
            f"{routine}: precision='tf32' needs backend 'native' (or 'auto'); got {backend!r}"
        )
    return True


def backend(routine, name, available, platform):
    """Resolves ``backend=`` to one that the plugin has for this routine."""
    if name not in BACKENDS:
        raise ValueError(
            f"{routine}: backend must be one of {', '.join(map(repr, BACKENDS))}; got {name!r}"
        )
    if name == "auto":
        return available[0]
    if name not in available:
        raise ValueError(
            f"{routine}: backend {name!r} is not available on platform {platform!r}; it has "
            f"{', '.join(map(repr, available))}"
        )
    return name


def order(routine, backend, n, ranks):
    """Refuses what the backend would compute wrong."""
    if routine == "potri" and backend == "cusolvermg" and ranks > 1 and n > _MG_POTRI_ORDER:
        raise ValueError(
            f"potri: a has order {n}; on several GPUs backend 'cusolvermg' is right up to order "
            f"{_MG_POTRI_ORDER} alone; use 'native' (or 'auto')"
        )
