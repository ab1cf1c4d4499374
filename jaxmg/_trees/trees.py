"""Applies a function to each matrix of a pytree whose leaves are on a mesh."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import checks
from jaxmg._layouts import layouts, meshes, places, shardings
from jaxmg._trees import exchanges, homes


def map_leaves(
    name, function, tree, mesh, specs, dtypes=None, square=False, cost=None, prepare=None,
    rounded=None,
):  # fmt: skip
    """Returns the tree of ``function``'s results for each matrix of ``tree``.

    Args:
        name: the public function's name, for errors.
        function: hashable function of a matrix.
        dtypes: the dtypes that leaves may have; None for any.
        square: whether the matrices must be square.
        cost: hashable function that returns the cost of a matrix; None for `homes.operations`.
        prepare: function that is applied to each leaf first.
        rounded: dict from the dtype of a leaf to the dtype in which the leaf is exchanged, both by
            name. Results in the exchange's dtype are converted to the leaf's dtype.
    """
    caller = f"tree.{name}"
    if not checks.ALL:
        raise NotImplementedError(f"{caller}: needs JAX 0.10 or newer; this is {jax.__version__}")
    meshes.refuse_manual_axes(caller)
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = ["tree" + jax.tree_util.keystr(path) for path, _ in paths]
    arrays = places.fetch([leaf for _, leaf in paths])
    for path, array in zip(names, arrays, strict=True):
        _check_leaf(caller, path, array, dtypes, square)
    if not arrays:
        return jax.tree.unflatten(structure, [])
    chosen = flatten_specs(caller, specs, tree)
    mesh = meshes.resolve_mesh(caller, arrays, mesh)
    if prepare is not None:
        arrays = [prepare(array) for array in arrays]
    each = list(zip(names, arrays, chosen, strict=True))
    leaves = tuple(lay_out(caller, mesh, *one) for one in each)
    arrays = [
        _put(array, leaf, spec, mesh)
        for array, leaf, spec in zip(arrays, leaves, chosen, strict=True)
    ]
    if rounded:
        leaves = tuple(leaf.cast(rounded.get(leaf.dtype.name, leaf.dtype)) for leaf in leaves)
    cost = homes.operations if cost is None else cost
    return jax.tree.unflatten(structure, exchanges.run(function, mesh, leaves, cost, arrays))


def side_by_side(name, tree, others, dtypes, specs):
    """Returns a tree of [A B], or [A; B] if A's columns are sharded, from a tree of square matrices
    A and a tree of matrices B like them."""
    caller = f"tree.{name}"
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    leaves, structure = jax.tree.flatten(others)
    expected: Any = jax.tree.structure(tree)
    if expected != structure:
        raise ValueError(
            f"{caller}: bases must have the structure of tree, {expected}; got {structure}"
        )
    chosen = flatten_specs(caller, specs, tree)
    pairs = []
    for (path, a), b, spec in zip(paths, leaves, chosen, strict=True):
        key = jax.tree_util.keystr(path)
        for named, array in ((f"tree{key}", a), (f"bases{key}", b)):
            _check_leaf(caller, named, array, dtypes, True)
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(
                f"{caller}: bases{key} must be like tree{key}, {a.dtype} of shape "
                f"{tuple(a.shape)}; it is {b.dtype} of shape {tuple(b.shape)}"
            )
        pairs.append(_join(a, b, spec))
    return jax.tree.unflatten(structure, pairs)


def _join(a, b, spec):
    sharding = shardings.named_sharding(a)
    spec = sharding.spec if spec is None and sharding is not None else spec
    by_columns = spec is not None and len(spec) == a.ndim and spec[-1] is not None
    if sharding is not None and not layouts.traced((a, b)):
        b = places.put(b, sharding)
    return jnp.concatenate([a, b], axis=-2 if by_columns else -1)


def _check_leaf(caller, path, array, dtypes, square):
    if not checks.is_array(array):
        raise TypeError(
            f"{caller}: {path} must be a JAX or NumPy array; got {type(array).__name__}"
        )
    checks.array(caller, path, array, checks.ALL, dtypes or (str(array.dtype),))
    if array.ndim < 2 or (square and array.shape[-1] != array.shape[-2]):
        raise ValueError(
            f"{caller}: {path} must be {'square matrices' if square else 'matrices'}, of shape "
            f"{'(..., n, n)' if square else '(..., m, n)'}; it has shape {tuple(array.shape)}. "
            "Remove leaves that are not matrices, or replace them with None"
        )


def _is_spec(value):
    return value is None or isinstance(value, P)


def flatten_specs(caller, specs, tree):
    """Returns each leaf's spec or None. ``specs`` is one spec for all leaves, or a tree prefix."""
    for spec in jax.tree.leaves(specs, is_leaf=_is_spec):
        if not _is_spec(spec):
            raise TypeError(
                f"{caller}: in_specs (or matrix_specs) must be a PartitionSpec, or a pytree of "
                f"them that is a prefix of the tree; got {spec!r}"
            )
    try:
        spread = jax.tree.map(
            lambda spec, part: [spec] * len(jax.tree.leaves(part)), specs, tree, is_leaf=_is_spec
        )
    except ValueError as error:
        raise ValueError(
            f"{caller}: in_specs (or matrix_specs) must be a PartitionSpec, or a prefix of the "
            f"tree: {error}"
        ) from None
    return jax.tree.leaves(spread, is_leaf=_is_spec)


def lay_out(caller, mesh, path, array, spec):
    """Returns the `homes.Leaf` of an array."""
    spec = shardings.known_spec(array, mesh) if spec is None else spec
    if spec is None:
        spec = _default_spec(mesh, array.shape)
    entries = [layouts.entry_axes(entry) for entry in spec]
    absent = [axis for axis in layouts.axes_in(spec) if axis not in mesh.axis_names]
    if absent or len(spec) > array.ndim:
        raise ValueError(
            f"{caller}: the spec {spec} doesn't fit {path}, of shape {tuple(array.shape)}, on a "
            f"mesh with the axes {tuple(mesh.axis_names)}"
        )
    for size, axes in zip(array.shape, entries, strict=False):
        if size % layouts.axes_size(mesh, axes):
            raise ValueError(
                f"{caller}: {path} has a dimension of {size}, which the "
                f"{layouts.axes_size(mesh, axes)} devices of {layouts.axes_names(axes)} in the "
                f"spec {spec} don't divide; pass another spec in in_specs, such as P()"
            )
    return homes.Leaf.make(array.shape, array.dtype, spec, mesh)


def _default_spec(mesh, shape):
    """Shards the first dimension that the number of devices divides over the whole mesh."""
    for i, size in enumerate(shape):
        if size and size % mesh.size == 0:
            return P(*(None,) * i, mesh.axis_names)
    return P()


def _put(array, leaf, spec, mesh):
    """Places an array on the mesh with its leaf's spec, unless it is traced or already there."""
    if layouts.traced((array,)):
        return array
    if spec is None and shardings.known_spec(array, mesh) is not None:
        return array
    return places.put(array, jax.sharding.NamedSharding(mesh, leaf.spec))
