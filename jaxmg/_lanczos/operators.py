"""What an operator is, and its trace as a function of a block of vectors and of arrays."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._krylov import operators
from jaxmg._layouts import layouts, shardings


def arrays_of(operator):
    """Returns arrays that an operator holds: those of its pytree, and of closures of functions in
    it."""
    arrays, static = operators.split(operator)
    functions = (x[0] for x in static.others if x is not None)
    cells = (cell for f in functions for cell in getattr(f, "__closure__", None) or ())
    contents = (cell.cell_contents for cell in cells)
    return [*arrays, *(x for x in jax.tree.leaves(list(contents)) if checks.is_array(x))]


def is_operator(value):
    """Whether ``value`` is a function, or an object with products, and no array."""
    if checks.is_array(value):
        return False
    return callable(value) or hasattr(value, "matmat") or _is_of_lineax(value)


def _is_of_lineax(value):
    return hasattr(value, "mv") and hasattr(value, "in_structure")


def multiply(operator):
    """Returns the function of a block of vectors, (n, m) -> (n, m), of an operator."""
    if hasattr(operator, "matmat"):
        return operator.matmat
    if _is_of_lineax(operator):
        return jax.vmap(operator.mv, 1, 1)
    return operator


class Vectors(typing.NamedTuple):
    """What an operator multiplies: vectors of this order and dtype."""

    n: int
    dtype: typing.Any


def vectors_of(caller, operator, v0, shape, dtype):
    """Returns the `Vectors` of an operator. Each source that is there must say the same: the
    arguments ``shape`` and ``dtype``, the operator's attributes of these names, and ``v0``."""
    if _is_of_lineax(operator):
        inside = operator.in_structure()
        if not hasattr(inside, "shape") or len(inside.shape) != 1:
            raise ValueError(
                f"{caller}: a lineax operator must multiply vectors (n,); it multiplies {inside}"
            )
        shape, dtype = (inside.shape * 2, inside.dtype) if shape is None else (shape, dtype)
    shape = getattr(operator, "shape", None) if shape is None else shape
    dtype = getattr(operator, "dtype", None) if dtype is None else dtype
    if shape is None and v0 is not None:
        shape = v0.shape[0], v0.shape[0]
    if dtype is None and v0 is not None:
        dtype = v0.dtype
    if shape is None or dtype is None:
        raise ValueError(
            f"{caller}: the order and the dtype of a function can't be seen; pass shape=(n, n) and "
            "dtype=, or v0, a start of shape (n,)"
        )
    try:
        m, n = (checks.index(size) for size in shape)
    except (TypeError, ValueError):
        raise TypeError(f"{caller}: shape must be two integers, (n, n); got {shape!r}") from None
    if m != n:
        raise ValueError(f"{caller}: A must be square; its shape is {(m, n)}")
    dtype = jnp.dtype(dtype)
    if str(dtype) not in checks.DTYPES:
        raise TypeError(
            f"{caller}: an operator must have one of the dtypes {', '.join(checks.DTYPES)}; got "
            f"{dtype}"
        )
    checks.double_precision(caller, "A", jax.ShapeDtypeStruct((), dtype))
    return Vectors(n, dtype)


@dataclasses.dataclass(frozen=True)
class Traced:
    """An operator as a function of arrays: of all that its closure and its pytree hold.

    Attributes:
        jaxpr: the function's, of a block and of the leaves of the operator.
        closed_over: the number of arrays of the closure, which come first.
        dtype: that of a block.
    """

    jaxpr: typing.Any
    closed_over: int
    dtype: typing.Any

    def with_arrays(self, arrays):
        """Returns the function of a block, with these arrays."""
        of_closure, leaves = arrays[: self.closed_over], arrays[self.closed_over :]
        function = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, list(of_closure)))
        return lambda x: function(x, *leaves)[0]


def trace(caller, operator, block):
    """Returns (`Traced`, arrays) of an operator that multiplies a ``block``, a ShapeDtypeStruct.
    Raises unless it returns another block like it."""
    leaves, static = operators.split(operator)
    if not static.is_permanent or layouts.traced(leaves):
        return _trace(caller, static, block, leaves)
    # The same program is used again.
    shapes = tuple((x.shape, x.dtype, shardings.named_sharding(x)) for x in leaves)
    mesh = jax.sharding.get_abstract_mesh()
    traced, arrays = _trace_once(caller, static, block, shapes, mesh, _compat.x64_enabled())
    return traced, [*arrays, *leaves]


@functools.lru_cache(maxsize=128)
def _trace_once(caller, static, block, shapes, mesh, x64):
    leaves = [jax.ShapeDtypeStruct(*one[:2], sharding=one[2]) for one in shapes]
    traced, arrays = _trace(caller, static, block, leaves)
    return traced, arrays[: traced.closed_over]


def _trace(caller, static, block, leaves):
    def function(x, *leaves):
        return operators.checked(caller, "A", multiply(static.join(leaves)))(x)

    closed = jax.make_jaxpr(function)(block, *leaves)
    traced = Traced(closed.jaxpr, len(closed.consts), block.dtype)
    return traced, [*closed.consts, *leaves]
