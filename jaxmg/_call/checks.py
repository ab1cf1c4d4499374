"""Checks of arguments. Invalid ones raise before any computation starts.

Every message names the routine and the argument, and says what it was and what it must be.
"""

import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxmg import _compat
from jaxmg._layouts import layouts, places

DTYPES = ("float32", "float64", "complex64", "complex128")
# The dtypes that `jaxmg.linalg` and `jaxmg.tree` also take; they compute with them in float32.
HALVES = ("bfloat16", "float16")
# Other dtypes, which `jaxmg.linalg` promotes, as JAX does.
_PROMOTABLE = ("bool",) + tuple(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
)
# The names of each `precision`, by the native code's `products` (Precision in device/blas.h). The
# first is the name that a factor reports. The others are from `jax.default_matmul_precision`,
# `jax.lax.Precision` and `jax.lax.DotAlgorithmPreset`. JAX has no "F16_F16_F32_X3", but has names
# of this form.
_PRODUCTS = (
    ("highest", "float32", "F32_F32_F32"),
    ("tf32", "tensorfloat32", "TF32_TF32_F32"),
    ("BF16_BF16_F32_X3", "high"),
    ("BF16_BF16_F32_X6",),
    ("F16_F16_F32_X3",),
    (None, "default"),
)
DEFAULT = 5  # the device's tuning chooses
PRODUCTS = {name: products for products, names in enumerate(_PRODUCTS) for name in names}
_PRECISIONS = sorted(PRODUCTS, key=lambda name: name is not None)  # None first
# Precisions that don't only apply to float32 and complex64.
_ANY_DTYPE = (None, "highest", "default")
# The transformations of JAX that the routines support.
ALL = ("vmap", "grad") if _compat.TRANSFORMS else ()
BACKENDS = ("auto", "native", "cusolvermg", "cusolvermp")
# If several GPUs share a matrix, cuSOLVERMg's inverse is wrong from this column on (docs/cuda.md).
_MG_POTRI_ORDER = 2048
_INT64_MAX = 2**63 - 1
_TRANSFORMED = {
    "vmap": (
        "is batched by jax.vmap, which isn't supported here (the routines support it with JAX 0.10 "
        "and newer). Make one call for each matrix, in a Python loop or in jax.lax.map; pass "
        "right-hand sides of one matrix as the columns of b, (n, nrhs)"
    ),
    "grad": (
        "is being differentiated (jax.grad, jvp, linearize, ...), which isn't supported here (the "
        "routines have derivatives with JAX 0.10 and newer). Define a rule for the call with "
        "jax.custom_vjp or jax.custom_jvp, or exclude the call from differentiation with "
        "jax.lax.stop_gradient"
    ),
}


def array(routine, name, value, transformations=(), dtypes=DTYPES):
    """Checks that ``value`` is an array of one of ``dtypes``, and that no transformation of JAX
    applies to it except ``transformations``."""
    is_an_array(routine, name, value)
    usable(routine, name, value)
    transformable(routine, name, value, transformations)
    if str(value.dtype) not in dtypes:
        raise TypeError(_other_dtype(routine, name, value, dtypes))
    double_precision(routine, name, value)


def double_precision(routine, name, value):
    """Checks that JAX computes in the precision of ``value``."""
    if str(value.dtype) in ("float64", "complex128") and not _compat.x64_enabled():
        raise ValueError(
            f"{routine}: {name} has dtype {value.dtype}, which needs JAX's 64-bit mode. "
            "Enable this mode with jax.config.update('jax_enable_x64', True) or the environment "
            f"variable JAX_ENABLE_X64=1, or pass {name} in single precision"
        )


def transformable(routine, name, value, transformations=ALL):
    """Checks that no transformation of JAX applies to ``value`` except ``transformations``."""
    transformation = _compat.transformation(value)
    if transformation and transformation not in transformations:
        raise NotImplementedError(f"{routine}: {name} {_TRANSFORMED[transformation]}")


def is_an_array(routine, name, value):
    """Checks that ``value`` is an array, not a list or a scalar."""
    if is_array(value):
        return
    scalar = "a NumPy scalar of type " if isinstance(value, np.generic) else ""
    convertible = isinstance(value, (list, tuple, np.generic, complex, float, int))
    raise TypeError(
        f"{routine}: {name} must be a JAX or NumPy array; got {scalar}{type(value).__name__}"
        + (f". Convert it with np.asarray({name})" if convertible else "")
    )


def _other_dtype(routine, name, value, dtypes):
    return (
        f"{routine}: {name} has dtype {value.dtype}; the supported dtypes are "
        f"{', '.join(dtypes)}. Convert it with {name}.astype(...)"
    )


def promotable(routine, names, arrays):
    """Raises a TypeError for the first array whose dtype JAX doesn't promote, if there is one."""
    for name, value in zip(names, arrays, strict=False):
        if str(value.dtype) not in (*DTYPES, *HALVES, *_PROMOTABLE):
            raise TypeError(_other_dtype(routine, name, value, (*DTYPES, *HALVES))) from None


def usable(routine, name, *arrays):
    """Checks that no array is masked (its mask would be ignored), deleted, or placed where no call
    can use it (`places.refuse`)."""
    for value in arrays:
        places.refuse(routine, name, value)
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(
                f"{routine}: {name} is a masked array, whose mask would be ignored; fill it with "
                f"{name}.filled(...)"
            )
        if is_deleted(value):
            raise RuntimeError(
                f"{routine}: {name}, of shape {tuple(value.shape)}, has been deleted: an earlier "
                "call took its memory (donate=True, or donate_argnums of a jax.jit), or "
                f"{name}.delete() was called. Pass a copy to that call, or don't donate to it"
            )


def is_array(value):
    return isinstance(value, (jax.Array, *_compat.numpy_types))


def is_deleted(value):
    """Whether ``value`` is a JAX array that has been deleted."""
    return isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.is_deleted()


def real_scalar(routine, name, value):
    """Checks that ``value`` is a real number, or an array of one."""
    if np.ndim(value) or jnp.iscomplexobj(value):
        raise ValueError(f"{routine}: {name} must be a real scalar; got {value!r}")


def index(value):
    """Converts an integer of any type to an int. Raises a TypeError for anything else, and for
    booleans, which are integers to Python."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"expected an integer, got {value!r}")
    return operator.index(value)


def matrix(routine, name, value, pad, transformations=(), dtypes=DTYPES, square=True):
    """Checks that ``value`` is a matrix of one of ``dtypes``: (n, n) if ``square``, else (m, n).
    With ``pad=False`` a square matrix may have rows of padding below."""
    array(routine, name, value, transformations, dtypes)
    if not square:
        if value.ndim != 2:
            raise ValueError(
                f"{routine}: {name} must be a matrix of shape (m, n); it has shape "
                f"{tuple(value.shape)}" + _batch_hint(value)
            )
        return
    square = value.ndim == 2 and value.shape[0] == value.shape[1]
    padded = value.ndim == 2 and value.shape[0] > value.shape[1]
    if not (square or (padded and not pad)):
        raise ValueError(
            f"{routine}: {name} must be a square matrix of shape (n, n); "
            f"it has shape {tuple(value.shape)}"
            + (". If it has rows of padding, pass pad=False" if padded else "")
            + _batch_hint(value)
        )


def _batch_hint(value):
    """Returns the end of an error about a batch, if this JAX is too old for batches."""
    if ALL or value.ndim < 3:
        return ""
    return f". Batches need JAX 0.10 or newer; this is {jax.__version__}"


def operands(caller, routine, arrays, pad):
    """Checks the arrays of a call of ``routine``, a `record.Routine`."""
    a, *others = arrays
    matrix(caller, routine.names[0], a, pad, ALL, square=routine.square)
    for b in others[: routine.matrices - 1]:
        second_matrix(caller, a, b, ALL)
    for b in others[routine.matrices - 1 :]:
        right_hand_side(caller, a, b, ALL, square=routine.square)


def batch(routine, name, value, pad, square=True):
    """If ``square``, checks that ``value`` is a batch of square matrices. With ``pad=False`` they
    may have rows of padding below."""
    rows, columns = value.shape[-2:]
    if not square:
        return
    if rows < columns or (rows > columns and pad):
        raise ValueError(
            f"{routine}: {name} must be a square matrix, or a batch of shape (..., n, n); it has "
            f"shape {tuple(value.shape)}"
        )


def batch_of_right_hand_sides(routine, names, arrays, square=True):
    """Checks that the right-hand sides of a batch fit its matrices, before `jax.vmap` hides the
    leading dimensions from errors."""
    (of_a, of_b), (a, b, *_) = names, arrays
    n = a.shape[-1] if square else a.shape[-2]
    if b.ndim and b.shape[-2 if b.ndim > 2 else 0] != n:
        raise ValueError(
            f"{routine}: {of_b} must have shape ({n},), ({n}, nrhs) or (..., {n}, nrhs) for {of_a} "
            f"of shape {tuple(a.shape)}; it has shape {tuple(b.shape)}"
        )


def batch_of_second_matrices(routine, a, b):
    """Checks that the second matrices of a batch have the shape of the first ones."""
    if a.shape[-2:] != b.shape[-2:]:
        raise ValueError(
            f"{routine}: b must have matrices of a's shape, {tuple(a.shape)}; it has shape "
            f"{tuple(b.shape)}"
        )


def block(routine, value, transformations=()):
    """Checks that ``value`` is a local block of a matrix, inside a shard_map."""
    array(routine, "a", value, transformations)
    if value.ndim != 2:
        raise ValueError(
            f"{routine}: a must be a local block of shape (rows, n); got {value.shape}"
        )


def second_matrix(routine, a, b, transformations=()):
    """Checks that ``b``, the second matrix or a block of it, has the shape and the dtype of
    ``a``."""
    array(routine, "b", b, transformations)
    if a.shape != b.shape:
        raise ValueError(
            f"{routine}: b must be a matrix of a's shape, {tuple(a.shape)}; it has shape "
            f"{tuple(b.shape)}"
        )
    one_dtype(routine, a, b)


def one_dtype(routine, a, b):
    if a.dtype != b.dtype:
        raise TypeError(
            f"{routine}: a and b must have one dtype; a has {a.dtype} and b has {b.dtype}. "
            "Convert one of them with .astype(...)"
        )


def right_hand_side(routine, a, b, transformations=(), square=True, dtypes=DTYPES):
    """Checks that ``b`` and the matrix ``a`` have the same number of rows. If ``square``, the
    columns of ``a`` count instead, because ``a`` may have rows of padding."""
    array(routine, "b", b, transformations, dtypes)
    n = a.shape[1] if square else a.shape[0]
    if b.ndim not in (1, 2) or b.shape[0] != n:
        raise ValueError(
            f"{routine}: b must have shape ({n},) or ({n}, nrhs) for a of shape "
            f"{tuple(a.shape)}; it has shape {tuple(b.shape)}"
        )
    one_dtype(routine, a, b)


def factor(routine, tiles, shape, ranks):
    """Raises unless ``tiles`` have the shape of the factor of one matrix of this shape."""
    m, n = shape
    rows = -(-m // ranks) * ranks
    if tiles.ndim != 2 or tiles.shape[1] != n or (n and tiles.shape[0] != rows):
        of = f"of order {n}" if m == n else f"of shape ({n}, {m})"
        raise ValueError(
            f"{routine}: the tiles of the factor have shape {tuple(tiles.shape)}, but those of a "
            f"factor {of} on {ranks} ranks have shape ({rows}, {n}). Map over a batch of factors "
            "with jax.vmap, or select one factor of it with jax.tree.map"
        )


def tile(routine, T_A, required=False):
    """Returns the tile width as an int; 0 means that the plugin chooses it."""
    if T_A is None and not required:
        return 0
    try:
        if T_A is None:
            raise TypeError
        width = index(T_A)
    except TypeError:
        raise TypeError(
            f"{routine}: T_A, the tile width, must be an integer of at least 1"
            f"{'' if required else ' or None'}; got {T_A!r}"
        ) from None
    if width < 1:
        raise ValueError(f"{routine}: T_A, the tile width, must be at least 1; got {width}")
    if width > _INT64_MAX:
        raise ValueError(
            f"{routine}: T_A, the tile width, must be below 2**63 (cyclic_1d: T_A times the ranks)"
            f"; got {width}. A tile needs no more rows than a has"
        )
    return width


def padding(routine, shape, layout, pad, square=True):
    """With ``pad=False``, checks that the number of ranks divides the number of rows. If a square
    matrix has rows of padding, also checks that each rank's block can end with them."""
    if pad:
        return
    (rows, n), ranks = shape, layout.ranks
    multiple(routine, rows, ranks, "ranks")
    if not square or rows == n or rows // ranks == -(-n // ranks):
        return
    if n % ranks:
        raise ValueError(
            f"{routine}: with pad=False each of the {ranks} blocks of rows has n / {ranks} rows of "
            f"the matrix, then rows of padding, but {ranks} doesn't divide n = {n} (a has shape "
            f"{tuple(shape)}); pass a of shape ({n}, {n}) and pad=True"
        )
    if layout.spec[1:] not in ((), (None,)):
        raise ValueError(
            f"{routine}: a has rows of padding, shape {tuple(shape)}, so it must be sharded by "
            f"rows, as P(axis, None); got {layout.spec}"
        )


def multiple(routine, rows, factor, meaning):
    """Checks that ``rows`` of a are a multiple of ``factor``, which ``pad=False`` requires."""
    if rows % factor:
        raise ValueError(
            f"{routine}: with pad=False the number of rows of a, {rows}, must be a multiple of "
            f"{factor} ({meaning}); pass pad=True, or {math.ceil(rows / factor) * factor} rows"
        )


def same_on_ranks(routine, b, layout):
    """Raises if the trace shows that ``b`` of a local call differs between the ranks. Returns
    whether the native code must compare ``b``, because the trace doesn't track it."""
    if not layout.rows or not _compat.tracks_varying(layout.rows[0]):
        return bool(layout.rows)
    varies = _compat.varying_axes(b)
    if varying := [axis for axis in layout.rows if axis in varies]:
        raise ValueError(
            f"{routine}: b must be the same on all ranks of the matrix, but it varies over "
            f"{', '.join(map(repr, varying))}, over which a is sharded; pass it to the shard_map "
            "with P(), and compute it only from values that are the same on all ranks, such as the "
            "results of psum"
        )
    return False


def separate(routine, a, b):
    """Raises if ``b`` shares the memory of ``a``; called if ``donate=True``."""
    if not all(isinstance(array, jax.Array) for array in (a, b)) or layouts.traced((a, b)):
        return
    # Arrays share whole buffers, so equal sizes are checked first: reading the addresses takes
    # longer than the dispatch of a small solve.
    if a is b or (_shard_size(a) == _shard_size(b) and _addresses(a) & _addresses(b)):
        raise ValueError(
            f"{routine}: b shares the memory of a, which donate=True overwrites; pass "
            "donate=False, or a copy of b (b.copy())"
        )


def _shard_size(array):
    return math.prod(array.sharding.shard_shape(array.shape))


def _addresses(array):
    """Returns the addresses of this process's shards of ``array``."""
    if array.is_deleted() or not array.size:
        return set()
    return {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}


def non_negative(routine, name, value) -> int:
    """Checks an argument of the layout helpers that is a count. Returns it as an int."""
    try:
        count = index(value)
    except TypeError:
        raise TypeError(f"{routine}: {name} must be an integer; got {value!r}") from None
    if count < 0:
        raise ValueError(f"{routine}: {name} must not be negative; got {count}")
    return count


def positive(routine, name, value) -> int:
    """Checks an argument of the layout helpers that is a size. Returns it as an int."""
    count = non_negative(routine, name, value)
    if count < 1:
        raise ValueError(f"{routine}: {name} must be at least 1; got {count}")
    return count


def precision(routine, name, dtype, backend, *_):
    """Checks ``precision=`` against the dtype and the resolved backend. Returns the native code's
    ``products``."""
    name = plain_precision(name)
    if not isinstance(name, str | None) or name not in PRODUCTS:
        raise ValueError(
            f"{routine}: precision must be one of {', '.join(map(repr, _PRECISIONS))}; got {name!r}"
        )
    if name not in _ANY_DTYPE and str(dtype) not in ("float32", "complex64"):
        raise ValueError(
            f"{routine}: precision={name!r} is for float32 and complex64; a has dtype {dtype}"
        )
    if 0 < PRODUCTS[name] < DEFAULT and backend != "native":
        raise ValueError(
            f"{routine}: precision={name!r} needs backend 'native' (or 'auto'); got {backend!r}"
        )
    return PRODUCTS[name]


def plain_precision(name):
    """Converts a member of JAX's enumerations of precisions to a name; returns other values
    unchanged."""
    if isinstance(name, jax.lax.Precision):
        return name.name.lower()
    return name.name if isinstance(name, jax.lax.DotAlgorithmPreset) else name


def precision_of(products):
    """Returns the name of the precision ``products``; None for the default."""
    return _PRODUCTS[products][0]


def backend(routine, name, available, platform):
    """Resolves ``backend=`` to a backend that the plugin has for this routine."""
    if backend_name(routine, name) == "auto":
        return available[0]
    if name not in available:
        raise ValueError(
            f"{routine}: backend {name!r} is not available on platform {platform!r}; it has "
            f"{', '.join(map(repr, available))}"
        )
    return name


def backend_name(routine, name):
    """Returns ``name``. Raises unless it is the name of a backend."""
    if name not in BACKENDS:
        raise ValueError(
            f"{routine}: backend must be one of {', '.join(map(repr, BACKENDS))}; got {name!r}"
        )
    return name


def order(routine, backend, n, ranks):
    """Raises if the backend computes wrong results for this order."""
    if routine == "potri" and backend == "cusolvermg" and ranks > 1 and n > _MG_POTRI_ORDER:
        raise ValueError(
            f"potri: a has order {n}; on several GPUs backend 'cusolvermg' returns wrong results "
            f"above order {_MG_POTRI_ORDER}; use 'native' (or 'auto')"
        )
