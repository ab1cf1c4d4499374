"""Operators: matrices that are sharded by rows, and functions of a block of vectors."""

import dataclasses
import types
import typing

import jax
import jax.numpy as jnp

from jaxmg._call import blocks, checks
from jaxmg._layouts import layouts, shardings
from jaxmg._matrices import products
from jaxmg._stacks import scaling
from jaxmg._transform import derivatives


@dataclasses.dataclass(frozen=True)
class HermitianProduct(derivatives.ByColumns):
    """H V of a Hermitian H, padded by `blocks.split_rows`, and of V (n, m), sharded like V."""

    on: layouts.Layout

    @property
    def layout(self):
        return self.on

    def run(self, *arrays):
        h, v = arrays
        if not v.size:
            return v
        product = products.rows_times_rows(h, v, self.on)
        return shardings.constrain_like(blocks.join_rows(product, self.on, len(v)), v)

    def rule(self, primals, tangents):
        h, v = primals
        h_dot, v_dot = tangents
        parts = [] if v_dot is None else [self(h, v_dot)]
        if h_dot is not None:
            parts.append(self.run(h_dot, v))
        return self(h, v), derivatives.sum_of(*parts)

    @property
    def adjoint(self):
        return self


def scaled_product(a, layout):
    """Returns (multiply, power): a function of V (n, m) that returns A V times a power of two, with
    which the entries of A are at most about 1, and the inverse of that power."""
    down, up = scaling.scale_of(a)
    before, behind = scaling.halves(down, jnp.ones_like(down))
    rows = blocks.split_rows(a, layout.by_rows)
    product = HermitianProduct(layout.by_rows)

    def multiply(v):
        return scaling.times(product(rows, scaling.times(v, before)), behind)

    return multiply, up


def by_rows(v, layout):
    """Shards vectors (n, m) by rows, if explicit axes allow it."""
    if not layout.rows or layout.solo:
        return v
    fits = not layout.explicit or len(v) % layout.ranks == 0
    return shardings.constrain(v, layout, layout.row_spec if fits else jax.sharding.PartitionSpec())


def checked(caller, name, function):
    """Returns ``function``, an operator, with an error if it returns another shape or dtype."""

    def run(v):
        result = function(v)
        shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
        if shape != v.shape or dtype != v.dtype:
            got = type(result).__name__ if shape is None else f"shape {shape} and dtype {dtype}"
            raise ValueError(
                f"{caller}: {name} must return an array of the shape and dtype of its argument; "
                f"for shape {v.shape} and dtype {v.dtype} it returns {got}"
            )
        return result

    return run


@dataclasses.dataclass(frozen=True)
class Static:
    """The part of a pytree of operators without its arrays.

    Attributes:
        tree: the structure.
        others: the leaves that are no arrays, such as functions; None in the place of arrays.
    """

    tree: typing.Any
    others: tuple

    def join(self, arrays):
        """Returns the operators with these arrays."""
        arrays = iter(arrays)
        leaves = [next(arrays) if x is None else x[0] for x in self.others]
        return jax.tree.unflatten(self.tree, leaves)

    @property
    def is_permanent(self):
        """Whether programs of these functions may stay in a cache. The closures of others may hold
        arrays, which would stay in memory, or tracers."""
        return all(
            x is None or isinstance(x[0], types.BuiltinFunctionType | type | complex | float | int)
            or (isinstance(x[0], types.FunctionType) and not x[0].__closure__)
            for x in self.others
        )  # fmt: skip


def split(operators):
    """Returns (arrays, `Static`) of a pytree of operators."""
    leaves, tree = jax.tree.flatten(operators)
    others = tuple(None if checks.is_array(x) else (x,) for x in leaves)
    return [x for x in leaves if checks.is_array(x)], Static(tree, others)
