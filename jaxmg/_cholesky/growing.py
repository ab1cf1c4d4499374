"""Cholesky factors that get and lose rows.

A factor with a capacity is that of [A 0; 0 I], whose order, the capacity, never changes: a step
that appends rows is compiled once. `CholeskyFactor.count` is A's order, a number on the devices.

The factor of [A A12; A12^H A22] has U's columns U^-H A12 and, on the diagonal, the factor of their
Schur complement. Without some rows and columns, A is K^H K + V V^H, where K is U without these rows
and columns, a triangle again, and V^H is the rest of these rows: an update (`updates`).

As for all factors, the tangent is that of [A 0; 0 I]: the same rows and columns are replaced or
left out.
"""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import alignment, blocks, checks, execute, ffi, programs
from jaxmg._call.arguments import collect
from jaxmg._cholesky import updates, upper_factor
from jaxmg._kept import leaves
from jaxmg._layouts import layouts, meshes, places, shardings
from jaxmg._matrices import hermitian, products
from jaxmg._transform import derivatives, dispatch

_FACTOR = "cho_factor"
_APPEND = "CholeskyFactor.append"
_REMOVE = "CholeskyFactor.remove"


# --- Creation ------------------------------------------------------------------------------------


def extend(routine, a, arguments, capacity):
    """Returns ([A 0; 0 I] by rows, the arguments of its factorization, A's order)."""
    order = checks.non_negative(_FACTOR, "capacity", capacity)
    if getattr(a, "ndim", 2) != 2:
        raise ValueError(
            f"{_FACTOR}: capacity is for a single matrix; a has shape {tuple(a.shape)}. Map over a "
            "batch with jax.vmap"
        )
    execute.check(routine, (a,), arguments)
    n = a.shape[1]
    if order < n or order == 0:
        raise ValueError(
            f"{_FACTOR}: capacity must be at least 1 and the order of a, {n}; got {order}"
        )
    layout = execute.resolve_layout(routine, (a,), arguments)
    call = programs.Call(
        "extend_rows", _extended, layout, (order, order), 0, "", (layout.row_spec,)
    )
    rows = programs.runner(call, (a,))(a)[0]
    if arguments.donate and isinstance(a, jax.Array) and not layouts.traced((a,)):
        a.delete()
    return rows, arguments._replace(mesh=layout.by_rows, spec=None, pad=True), n


def _extended(call, a):
    """Returns [A 0; 0 I] with as many rows of padding as the ranks need."""
    layout, (order, _) = call.layout, call.shape
    n = a.shape[1]
    if not n:
        a = jnp.zeros((1, 1), a.dtype) + 1
    (a,) = ffi.meet_first(layout, a)
    if layout.explicit:
        a = shardings.constrain(a, layout, P())
    return (blocks.split_rows(alignment.extended(a, order, 1.0), layout),)


# --- Appending -----------------------------------------------------------------------------------


def append(factor, a12, a22):
    """Computes `CholeskyFactor.append`."""
    capacity, count = _size(_APPEND, factor)
    checks.array(_APPEND, "a12", a12, checks.ALL)
    checks.array(_APPEND, "a22", a22, checks.ALL)
    k = 1 if a12.ndim == 1 else a12.shape[-1]
    if a12.ndim not in (1, 2) or a12.shape[0] != capacity:
        raise ValueError(
            f"{_APPEND}: a12 must have shape ({capacity},) or ({capacity}, k) for a factor of "
            f"capacity {capacity}, of which rows after the factor's count don't matter; it has "
            f"shape {tuple(a12.shape)}"
        )
    if a22.shape != (k, k) and not (k == 1 and a22.size == 1):
        raise ValueError(
            f"{_APPEND}: a22 must have shape ({k}, {k}) for a12 of shape {tuple(a12.shape)}; it "
            f"has shape {tuple(a22.shape)}"
        )
    for name, array in (("a12", a12), ("a22", a22)):
        if array.dtype != factor.dtype:
            raise TypeError(
                f"{_APPEND}: {name} must have the factor's dtype, {factor.dtype}; it has "
                f"{array.dtype}. Convert it with .astype(...)"
            )
    if count is not None and count + k > capacity:
        raise ValueError(
            f"{_APPEND}: a factor of capacity {capacity} with {count} rows can't take {k} "
            "more; create one with a larger capacity, cho_factor(a, capacity=m)"
        )
    return _differentiable(_Append(), factor, a12, a22) if k else factor


class _Function:
    """A function of a factor and two arrays, and its derivative."""

    def __eq__(self, other):
        return type(self) is type(other)

    def __hash__(self):
        return hash(type(self))


class _Append(_Function):
    routine = _APPEND

    def __call__(self, factor, a12, a22):
        layout, count, n = factor.layout, factor.count, factor.n
        a12, k = a12.reshape(n, -1), a22.size if a22.ndim < 2 else len(a22)
        a22 = a22.reshape(k, k)
        a12 = jnp.where((_rows(n) < count) & (count + k <= n), a12, jnp.nan)
        a12 = jnp.where((_rows(n) >= count) & (count + k <= n), 0, a12)
        y = factor.solve_triangular(a12)
        u = jnp.linalg.cholesky(a22 - products.dot(y.conj(), y, 0, 0)).conj().T
        upper = hermitian.rows(layout, factor.upper())
        upper = _with_columns(layout, upper, _placed(y, u, count), count)
        return dataclasses.replace(_from_rows(factor, upper), count=count + k)

    def tangent(self, factor, rows, arrays, tangents):
        a12, a22 = (
            jnp.zeros(x.shape, x.dtype) if t is None else t
            for x, t in zip(arrays, tangents, strict=True)
        )
        k = 1 if a22.ndim < 2 else len(a22)
        a12 = jnp.where(_rows(factor.n) < factor.count, a12.reshape(factor.n, -1), 0)
        columns = _placed(a12, a22.reshape(k, k), factor.count)
        return _with_columns(factor.layout, rows, columns, factor.count)


def _rows(n):
    return jnp.arange(n, dtype=jnp.int32)[:, None]


def _placed(column, block, row):
    """Returns ``column`` with ``block`` in place of its rows from ``row`` on."""
    return jax.lax.dynamic_update_slice(column, block, (row, jnp.zeros_like(row)))


@hermitian.on_mesh
def _with_columns(layout, rows, columns, first):
    """Returns a matrix with these columns in place of its own from ``first`` on."""

    def local(rank, rows, columns, first):
        own = hermitian.own_rows(layout, rank, columns)
        return jax.lax.dynamic_update_slice(rows, own, (jnp.zeros_like(first), first))

    return hermitian.over_ranks(layout, local, (rows,), (columns, first))


# --- Removing ------------------------------------------------------------------------------------


def remove(factor, indices):
    """Computes `CholeskyFactor.remove`."""
    capacity, count = _size(_REMOVE, factor)
    if not layouts.traced((indices,)):
        indices = np.asarray(indices)
    if indices.ndim > 1 or not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(
            f"{_REMOVE}: indices must be integers, (k,) or a single one; got an array of "
            f"{indices.dtype} of shape {tuple(indices.shape)}"
        )
    if not layouts.traced((indices,)):
        found = indices.ravel()
        end = capacity if count is None else count
        if found.size != len(set(found.tolist())) or np.any((found < 0) | (found >= end)):
            raise ValueError(
                f"{_REMOVE}: indices must be different rows of the factor, from 0 to {end - 1}; "
                f"got {found.tolist()}"
            )
    if not indices.size:
        return factor
    return _differentiable(_Remove(), factor, indices.astype(jnp.int32).reshape(-1))


class _Remove(_Function):
    routine = _REMOVE

    def __call__(self, factor, indices):
        layout, n = factor.layout, factor.n
        order, kept, valid = _kept(factor, indices)
        upper = hermitian.rows(layout, factor.upper())
        removed = _rows_at(layout, upper, indices, valid)[:, order].conj().T
        removed = jnp.where(_rows(n) < kept, removed, 0)
        upper = _compacted(layout, upper, order, kept, 1.0, len(indices))
        smaller = dataclasses.replace(_from_rows(factor, upper), count=kept)
        return updates.update(smaller, removed, 1)

    def tangent(self, factor, rows, arrays, tangents):
        (indices,) = arrays
        order, kept, _ = _kept(factor, indices)
        return _compacted(factor.layout, rows, order, kept, 0.0, len(indices))


def _kept(factor, indices):
    """Returns (order, count, valid). The order lists the rows that stay, then the others; ``count``
    is the number of those that stay. An index is valid if it is a row, and no earlier index is."""
    row = jnp.arange(factor.n, dtype=jnp.int32)
    equal = indices[:, None] == indices
    valid = (indices >= 0) & (indices < factor.count) & ~jnp.any(jnp.tril(equal, -1), axis=1)
    kept = (row < factor.count) & ~jnp.any(row[:, None] == indices, axis=1)
    return jnp.argsort(~kept, stable=True), jnp.sum(kept, dtype=jnp.int32), valid


@hermitian.on_mesh
def _rows_at(layout, rows, indices, valid):
    """Returns rows of a matrix, zeros where they aren't valid, on all ranks."""

    def local(rank, rows, indices, valid):
        own = indices - rank * len(rows)
        mine = valid & (own >= 0) & (own < len(rows))
        found = jnp.where(mine[:, None], rows[jnp.clip(own, 0, len(rows) - 1)], 0)
        return hermitian.sum_over_ranks(layout, found)

    return hermitian.over_ranks(layout, local, (rows,), (indices, valid), P())


@hermitian.on_mesh_with(4, 5)
def _compacted(layout, rows, order, kept, diagonal, most):
    """Returns the rows and columns that stay, the first ``kept`` of this order, and after them
    ``diagonal`` times the identity. A row moves by at most ``most`` rows."""

    def local(rank, rows, order, kept):
        count, n = rows.shape
        own = hermitian.own_rows(layout, rank, order[:, None])[:, 0] - rank * count
        near = _with_next_rows(layout, rows, most)
        moved = near[jnp.clip(own, 0, len(near) - 1)][:, order]
        row, column = rank * count + jnp.arange(count)[:, None], jnp.arange(n)
        one = jnp.where(row == column, jnp.full((), diagonal, rows.dtype), 0)
        return jnp.where((row < kept) & (column < kept), moved, jnp.where(row < n, one, 0))

    return hermitian.over_ranks(layout, local, (rows,), (order, kept))


def _with_next_rows(layout, rows, count):
    """Returns a rank's rows with the next ``count`` ones, which are on the ranks after it."""
    parts, own, ranks = [rows], len(rows), layout.ranks
    for away in range(1, min(-(-count // max(own, 1)), ranks - 1) + 1):
        wanted = rows[: count - (away - 1) * own]
        sources = [(rank + away, rank) for rank in range(ranks - away)]
        parts.append(jax.lax.ppermute(wanted, layout.rows, sources))
    return jnp.concatenate(parts) if len(parts) > 1 else rows


# --- Both ----------------------------------------------------------------------------------------


def _size(routine, factor):
    """Returns (the capacity of a factor, its number of rows or None if that is traced)."""
    meshes.refuse_manual_axes(routine)
    leaves.check(routine, factor, factor.n)
    if factor.count is None:
        raise ValueError(
            f"{routine}: this factor can't take or lose rows; create one with a capacity, "
            "cho_factor(a, capacity=m)"
        )
    checks.usable(routine, "factor", factor.tiles, factor.overflow, factor.count)
    checks.factor(routine, factor.tiles, factor.shape, factor.layout.ranks)
    count = None if layouts.traced((factor.count,)) else int(np.asarray(factor.count))
    return factor.n, count


def _from_rows(factor, upper):
    """Returns the factor of U^H U, in the form of ``factor``, whose status it keeps."""
    arguments = collect(upper_factor.FROM_UPPER, factor.tile, None, None, None, True, "native")
    arguments = arguments._replace(mesh=factor.layout.by_rows)
    tiles, overflow, log_det, status = dispatch.transform(
        upper_factor.FROM_UPPER, (upper,), arguments, _no_rule
    )
    return dataclasses.replace(
        factor, tiles=tiles, overflow=None if factor.overflow is None else overflow,
        _log_det=log_det, status=jnp.where(factor.status == 0, status, factor.status),
    )  # fmt: skip


def _no_rule(arguments):
    """Returns a derivative rule that isn't used: `_differentiable` has its own."""


def _differentiable(function, factor, *arrays):
    """Calls ``function(factor, *arrays)``, with a derivative; eagerly as one program."""
    if not layouts.traced((factor.tiles, *arrays)):
        place = meshes.located(function.routine, factor.layout, (factor.tiles,)).sharding(P())
        arrays = tuple([places.put(x, place) for x in arrays])
    leaves_of: typing.Any = jax.tree.flatten((factor, arrays))
    values, tree = leaves_of

    def rule(primals, tangents):
        results = run(*primals)
        factor, arrays = tree.unflatten(primals)
        moved = tangents[0]
        if moved is None:
            moved = jnp.zeros_like(primals[0])
        moved = function.tangent(factor, moved, arrays, tangents[-len(arrays) :])
        moved = shardings.constrain_like(moved, results[0])
        return results, (moved, *derivatives.still(results[1:]))

    def run(*values):
        return derivatives.differentiable(functools.partial(_run, function, tree), rule, *values)

    results = run(*values)
    return jax.tree.unflatten(jax.tree.structure(factor), results)


def _run(function, tree, *values):
    factor, _ = tree.unflatten(values)
    mesh = meshes.located(function.routine, factor.layout, values).mesh
    if layouts.traced(values):
        with _compat.entered(mesh):
            return _compiled(function, tree, *values)
    with _compat.entered(mesh), _compat.launching(mesh):
        return _compiled(function, tree, *values)


@functools.partial(jax.jit, static_argnums=(0, 1))
@_compat.default_promotion()
def _compiled(function, tree, *values):
    factor, arrays = tree.unflatten(values)
    return tuple(jax.tree.leaves(function(factor, *arrays)))
