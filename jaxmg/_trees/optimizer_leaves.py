"""The leaves of an optimizer's tree as batches of matrices, for `jaxmg.optax`.

A leaf has any shape and sharding, on automatic or explicit axes. `Leaves` keeps those that are
matrices, with the mesh and the spec of each as far as they are known, and calls functions of
`jaxmg.tree` for them. L and R are the averages of G G^H and G^H G for updates G.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._layouts import layouts, meshes, shardings
from jaxmg._layouts import shardings as layouts_shardings
from jaxmg._trees import trees

_FLOATS = (*checks.DTYPES, *checks.HALVES)


class Leaves:
    """The leaves of a tree of parameters or updates; lists below have an entry for each.

    Attributes:
        name: the transformation, for errors.
        structure: the structure of the tree.
        arrays: the leaves.
        forms: a `Form` for each leaf that is a matrix or a batch of them; None for others.
        mesh: the mesh of the matrices; None if parameters don't say it.
    """

    def __init__(self, name, structure, arrays, forms, mesh):
        self.name, self.structure, self.mesh = name, structure, mesh
        self.arrays, self.forms = arrays, forms

    @classmethod
    def of(cls, name, argument, tree, dimensions=None, mesh=None, specs=None, most=math.inf):
        """Checks the leaves of ``tree``, which is the ``argument`` of the transformation ``name``.

        Args:
            dimensions: ``weight_dimension_numbers`` of `scale_by_muon`.
            most: the largest dimension that has a preconditioner.
        """
        meshes.refuse_manual_axes(name)
        paths, structure = jax.tree_util.tree_flatten_with_path(tree)
        names = [argument + jax.tree_util.keystr(path) for path, _ in paths]
        arrays = [array for _, array in paths]
        axes = [
            None if each is _NO_MATRIX else _matrix_axes(name, path, array, each)
            for path, array, each in zip(
                names, arrays, _flatten_dimensions(name, dimensions, tree), strict=True
            )
        ]
        matrices = [array for array, each in zip(arrays, axes, strict=True) if each]
        if matrices and (argument == "updates" or mesh is not None):
            mesh = meshes.resolve_mesh(name, matrices, mesh)
        elif mesh is None:
            shardings = filter(None, map(layouts_shardings.named_sharding, matrices))
            mesh = next((sharding.mesh for sharding in shardings), None)
        specs = trees.flatten_specs(name, specs, tree)
        forms = [
            each and Form.of(name, path, array, each, mesh, spec, most)
            for path, array, each, spec in zip(names, arrays, axes, specs, strict=True)
        ]
        return cls(name, structure, arrays, forms, mesh)

    def map(self, function, *lists):
        """Applies a function to the values of each leaf that is a matrix."""
        return [
            None if form is None else function(*values)
            for form, *values in zip(self.forms, *lists, strict=True)
        ]

    def of_pairs(self, function, pairs):
        """Applies a function to each array of the pairs."""
        return self.map(functools.partial(jax.tree.map, function), pairs)

    def squarely(self, function, *pairs):
        """Applies a function to the left values of each leaf and to the right ones. The results
        are square matrices."""

        def both(*pairs):
            return tuple(
                None if values[0] is None else function(*values)
                for values in zip(*pairs, strict=True)
            )

        return self.map(
            lambda form, *pairs: form.on(both, form.square_specs, *pairs), self.forms, *pairs
        )

    def call(self, function, specs, *values):
        """Returns the results of a function of `jaxmg.tree` for each leaf."""
        specs, *arguments = map(self.structure.unflatten, (specs, *values))
        if not jax.tree.leaves(arguments):
            return values[0]
        result = function(*arguments, mesh=self.mesh, matrix_specs=specs)
        return self.structure.flatten_up_to(result)

    def tree(self, values, nothing):
        """Returns a tree for the state, with ``nothing`` in place of other leaves."""
        return self.structure.unflatten([nothing if x is None else x for x in values])

    def like(self, tree):
        """Returns the values of a tree of the state for each leaf."""
        hint = "pass the state that init returned for the same parameters"
        try:
            values = self.structure.flatten_up_to(tree)
        except ValueError as error:
            raise ValueError(
                f"{self.name}: the state doesn't match the updates; {hint}: {error}"
            ) from None

        def check(form, value):
            for array in jax.tree.leaves(value):
                if array.shape not in (form.shape, *form.square_shapes):
                    raise ValueError(
                        f"{self.name}: {form.path} has shape {form.shape}, but the state has an "
                        f"array of shape {array.shape} for it; {hint}"
                    )
            return value

        return self.map(check, self.forms, values)

    def replicated(self, x):
        """Returns an array of the state that isn't a leaf's, with a spec of all its dimensions.

        On explicit axes a jitted function returns ``P(None)`` for a vector that it got as ``P()``.
        That is another type, with which the next update would compile again.
        """
        if not layouts.traced((x,)) or AxisType.Explicit not in getattr(
            self.mesh, "axis_types", ()
        ):
            return x
        return _compat.reshard(x, NamedSharding(self.mesh, P(*(None,) * x.ndim)))

    def updated(self, results):
        """Returns the tree of updates, with these results for matrices."""
        pairs = zip(self.arrays, results, strict=True)
        return self.structure.unflatten([g if x is None else as_dtype_of(x, g) for g, x in pairs])

    @property
    def square_specs(self) -> Any:
        return self.map(lambda form: form.square_specs, self.forms)

    def squares(self, dtype, least="bfloat16"):
        """Returns pairs of zeros of the shapes of L and R.

        Args:
            dtype: ``stats_dtype`` of `jaxmg.optax.scale_by_shampoo`.
            least: the least dtype.
        """

        def zeros(form, x):
            of = _of_statistics(x.dtype, dtype)
            return form.squares(x, jnp.promote_types(of, least))

        return self.map(zeros, self.forms, self.arrays)

    def averages(self, pairs, decay, new, precision):
        """Returns ``decay`` (L, R) + ``new`` (G G^H, G^H G)."""

        def both(rates, g, pair):
            decay, new = rates
            return tuple(
                None if a is None else decay * wide(a, g) + new * product(wide(g, a))
                for a, product in zip(pair, (left, right), strict=True)
            )

        def left(x):
            return jnp.matmul(x, adjoint(x), precision=precision)

        def right(x):
            return jnp.matmul(adjoint(x), x, precision=precision)

        def averaged(form, g, pair):
            result = form.on(both, form.square_specs, (decay, new), g, pair)
            return jax.tree.map(as_dtype_of, result, pair)

        return self.map(averaged, self.forms, self.arrays, pairs)


@dataclasses.dataclass(frozen=True)
class Form:
    """A leaf as a batch of matrices.

    Attributes:
        axes: the dimensions of the batch, of the rows and of the columns.
        mesh, spec: how the leaf lies; None if that isn't known.
        sides: whether rows, and columns, have a preconditioner.
    """

    path: str
    shape: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    mesh: Any
    spec: Any
    sides: tuple[bool, bool]

    @classmethod
    def of(cls, name, path, array, axes, mesh, spec, most):
        if mesh is not None and spec is not None:
            spec = trees.lay_out(name, mesh, path, array, spec).spec
        elif mesh is not None:
            known = shardings.known_spec(array, mesh)
            if known is None and AxisType.Explicit in mesh.axis_types:
                known = P()
            if known is not None:
                spec = P(*known, *(None,) * (array.ndim - len(known)))
        else:
            spec = None
        sides = tuple(size <= most for size in array.shape[-2:])
        return cls(path, tuple(array.shape), axes, mesh, spec, sides)

    @property
    def is_plain(self):
        return self.axes[1:] == ((len(self.shape) - 2,), (len(self.shape) - 1,))

    @property
    def matrix_spec(self):
        """The spec of the matrices. If several dimensions of the leaf form the rows of a matrix,
        the rows are sharded only if the first of these dimensions is sharded and no other."""
        if self.spec is None or self.is_plain:
            return self.spec

        def merged(axes):
            first, *others = (self.spec[axis] for axis in axes)
            return None if any(others) else first

        batch, *of_matrix = self.axes
        return P(*(self.spec[axis] for axis in batch), *map(merged, of_matrix))

    def to_matrices(self, x):
        """Moves and merges the dimensions of the leaf."""
        if self.is_plain:
            return x
        batch, *of_matrix = self.axes
        order = sum(self.axes, ())
        shape = [self.shape[i] for i in batch]
        shape += [math.prod(self.shape[i] for i in axes) for axes in of_matrix]
        return self.on(lambda x: x.transpose(order).reshape(shape), self.matrix_spec, x)

    def from_matrices(self, x):
        """Undoes `to_matrices`."""
        if self.is_plain:
            return x
        order = sum(self.axes, ())
        shape = [self.shape[i] for i in order]
        back = [order.index(i) for i in range(len(order))]
        return self.on(lambda x: x.reshape(shape).transpose(back), self.spec, x)

    @property
    def square_shapes(self):
        *batch, m, n = self.shape
        return (*batch, m, m), (*batch, n, n)

    @property
    def square_specs(self) -> Any:
        """The specs of L and R."""
        if self.spec is None:
            return None
        *batch, rows, columns = self.spec
        pair = P(*batch, rows, None), P(*batch, columns, None)
        return tuple(spec if side else None for spec, side in zip(pair, self.sides, strict=True))

    def squares(self, like, dtype):
        """Returns zeros for L and R, placed like ``like``."""
        if self.spec is not None and self.mesh.size > 1:
            places = [
                spec if spec is None else NamedSharding(self.mesh, spec)
                for spec in self.square_specs
            ]
        else:
            is_put = not layouts.traced((like,)) and getattr(like, "committed", False)
            place = like.sharding if is_put else None
            places = [place, place]
        return tuple(
            jnp.zeros(shape, dtype, device=place) if side else None
            for shape, side, place in zip(self.square_shapes, self.sides, places, strict=True)
        )

    def on(self, function, specs, *arrays):
        """Returns the function's results, which are sharded as the pytree ``specs`` says. XLA
        distributes the computation."""
        if AxisType.Explicit in self.mesh.axis_types:
            each, structure = jax.tree.flatten(specs)

            def run(*arrays):
                return jax.tree.leaves(function(*arrays))

            results: Any = shardings.automatically(self.mesh, run, each, *arrays)
            return jax.tree.unflatten(structure, results)
        results = function(*arrays)
        if self.spec is None or self.mesh.size == 1:
            return results
        return jax.tree.map(
            lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec)),
            results, specs,
        )  # fmt: skip


# A leaf of `weight_dimension_numbers` whose updates pass through.
_NO_MATRIX = object()


def _flatten_dimensions(name, dimensions, tree):
    """Returns for each leaf its ``MuonDimensionNumbers``, None for the last two dimensions, or
    `_NO_MATRIX`."""
    dimensions = dimensions(tree) if callable(dimensions) else dimensions
    if dimensions is None:
        return [None] * len(jax.tree.leaves(tree))

    def is_leaf(value):
        return value is None or hasattr(value, "reduction_axis")

    for value in jax.tree.leaves(dimensions, is_leaf=is_leaf):
        if not is_leaf(value):
            raise TypeError(
                f"{name}: weight_dimension_numbers must be a pytree of MuonDimensionNumbers and "
                "None that is a prefix of the updates, or a function that returns one; got "
                f"{value!r}"
            )

    def spread(value, part):
        return [_NO_MATRIX if value is None else value] * len(jax.tree.leaves(part))

    try:
        lists = jax.tree.map(spread, dimensions, tree, is_leaf=is_leaf)
    except ValueError as error:
        raise ValueError(
            f"{name}: weight_dimension_numbers must be a prefix of the updates: {error}"
        ) from None
    return jax.tree.leaves(lists, is_leaf=is_leaf)


def _matrix_axes(name, path, array, dimensions):
    """Returns the dimensions of the batch, of the rows and of the columns of a leaf; None if it
    isn't a matrix."""
    if not hasattr(array, "ndim") or array.ndim < 2:
        return None
    checks.array(name, path, array, checks.ALL, _FLOATS)
    n = array.ndim
    if dimensions is None:
        return tuple(range(n - 2)), (n - 2,), (n - 1,)
    each = [axes if isinstance(axes, Sequence) else (axes,) for axes in dimensions]
    if not all(-n <= axis < n for axes in each for axis in axes):
        raise ValueError(f"{name}: {dimensions} is out of range for the {n} dimensions of {path}")
    rows, columns = (tuple(axis % n for axis in axes) for axes in each)
    of_matrix = (*rows, *columns)
    if not rows or not columns or len(set(of_matrix)) < len(of_matrix):
        raise ValueError(
            f"{name}: {dimensions} must name at least one reduction and one output axis, and none "
            f"twice; {path} has {n} dimensions"
        )
    return tuple(axis for axis in range(n) if axis not in of_matrix), rows, columns


def adjoint(x):
    return jnp.swapaxes(x, -1, -2).conj()


def wide(x, other=None):
    """Returns x in at least float32, and at least in the dtype of ``other``."""
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    return x.astype(dtype if other is None else jnp.promote_types(dtype, other.dtype))


def as_dtype_of(x, other):
    return x.astype(other.dtype)


def _of_statistics(dtype, stats_dtype):
    """Returns the dtype of the averages of G G^H for updates G of a dtype."""
    if stats_dtype is None or jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.promote_types(dtype, jnp.float32 if stats_dtype is None else stats_dtype)
    return stats_dtype
