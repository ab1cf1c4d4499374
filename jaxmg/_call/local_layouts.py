"""The layout of a matrix of which a rank has its block, inside a shard_map of the caller's."""

import itertools

import jax
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call.layouts import (
    Layout,
    axes_names,
    axes_size,
    check_spec,
    entry_axes,
    manual_axes,
    with_processes,
)


def infer_local(routine, block, concrete, spec, pad, square=True):
    """The layout of a matrix of which ``block`` is the local part, inside a shard_map.

    Without a spec the axes are those that make the ranks fit the block's shape and that JAX knows
    the block to vary over, where that leaves one answer. A mesh that is ``concrete`` says which
    processes have the devices; inside a shard_map JAX doesn't.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = manual_axes()
    for axis in mesh.axis_names:
        if axis not in manual and mesh.shape[axis] > 1:
            raise ValueError(
                f"{routine}: inside shard_map all axes must be manual, but axis {axis!r} of size "
                f"{mesh.shape[axis]} is not; leave axis_names out of the shard_map"
            )
    if spec is None:
        rows = _fitting_axes(routine, mesh, block, pad, square)
        spec = P(rows, None)
    else:
        entries = check_spec(routine, spec, manual)
        rows, columns = (
            tuple(axis for axis in entry_axes(entry) if mesh.shape[axis] > 1) for entry in entries
        )
        _check_block(routine, mesh, block, pad, rows, columns, square)
        # Columns over an axis of one device are whole, and the caller has blocks all the same.
        rows, spec = rows + columns, P(rows, columns or entry_axes(entries[1]))
        possible = _possible_axes(mesh, block)
        if unknown := [axis for axis in rows if axis not in possible]:
            raise ValueError(
                f"{routine}: by in_specs the matrix is sharded over {axes_names(rows)}, but "
                f"this block is the same on all ranks along {axes_names(unknown)}; pass "
                "the spec that the shard_map has for A"
            )
    others = tuple(axis for axis in manual if axis not in rows)
    return with_processes(routine, Layout(mesh, rows, others, spec, inside=True), concrete)


def local_rank(layout):
    """This device's rank, inside a shard_map of the caller's."""
    return _local_index(layout.rows)


def local_coordinates(layout):
    """[rank, group of replicas] of this device, inside a shard_map of the caller's."""
    return jax.numpy.stack([local_rank(layout), _local_index(layout.others)])


def summed(value, layout):
    """The sum over the ranks of what each has, inside a shard_map: the same on all of them, and
    known to be where the trace tracks that."""
    alone = [axis for axis in _compat.varying_axes(value) if layout.mesh.shape[axis] == 1]
    axes = (*layout.rows, *(axis for axis in alone if axis not in layout.rows))
    return jax.lax.psum(value, axes) if axes else value


def shared_axes(layout, *arrays):
    """Those axes over which what all ranks share varies, of these arrays in the caller's shard_map:
    another group of replicas has another one. Along an axis of one device nothing varies."""
    varying = frozenset().union(*map(_compat.varying_axes, arrays))
    return frozenset(
        axis for axis in varying if axis not in layout.rows and layout.mesh.shape[axis] > 1
    )


def _fitting_axes(routine, mesh, block, pad, square):
    """The axes that ``block`` must be sharded over by rows. Raises where its shape and what the
    trace knows leave more than one answer: a wrong one would solve another matrix."""
    possible = _possible_axes(mesh, block)
    wide = [axis for axis in mesh.axis_names if axis in possible]
    subsets = itertools.chain.from_iterable(
        itertools.combinations(wide, count) for count in range(len(wide) + 1)
    )
    fitting = [axes for axes in subsets if _fits(mesh, block, pad, axes, square)]
    if not fitting:
        _refuse_block(routine, mesh, block)
    if block.shape[1] == 0:
        return ()
    if len(fitting) > 1 or len(fitting[0]) > 1:
        raise ValueError(
            f"{routine}: a local block of shape {tuple(block.shape)} could be sharded over any of "
            f"{fitting}, in any order; pass in_specs=P(axis, None), the spec that the shard_map has"
            f" for A, such as in_specs=P({fitting[-1]!r}, None): the order of the axes counts"
        )
    return fitting[0]


def _possible_axes(mesh, block):
    """The manual axes of more than one rank that ``block`` may be sharded over: all of them, or
    where the trace tracks it those that the block varies over."""
    wide = frozenset(axis for axis in manual_axes() if mesh.shape[axis] > 1)
    if wide and _compat.tracks_varying(next(iter(wide))):
        return wide & _compat.varying_axes(block)
    return wide


def _fits(mesh, block, pad, axes, square):
    """Whether ``block`` may be the rows of a rank of a matrix sharded over ``axes``. More rows than
    a square matrix has are the caller's padding; one of (m, n) may have any number of rows."""
    if not square:
        return True
    rows, n = block.shape
    ranks = axes_size(mesh, axes)
    return rows == -(-n // ranks) or (not pad and n % ranks == 0 and rows > n // ranks)


def _check_block(routine, mesh, block, pad, rows, columns, square):
    """Raises where ``block`` isn't what a spec of these axes leaves of an (n, n) matrix."""
    if not columns:
        if not _fits(mesh, block, pad, rows, square):
            _refuse_block(routine, mesh, block)
        return
    m, n = (
        block.shape[0] * axes_size(mesh, rows),
        block.shape[1] * axes_size(mesh, columns),
    )
    if not square and m % axes_size(mesh, rows + columns):
        raise ValueError(
            f"{routine}: sharded over rows and columns the local block of an (m, n) matrix has "
            f"shape (m / Pr, n / Pc), and Pr Pc must divide m; got {tuple(block.shape)} with Pr = "
            f"{axes_size(mesh, rows)} and Pc = {axes_size(mesh, columns)}"
        )
    if square and (m != n or n % axes_size(mesh, rows + columns)):
        raise ValueError(
            f"{routine}: sharded over rows and columns the local block of an (n, n) matrix has "
            f"shape (n / Pr, n / Pc), and Pr Pc must divide n; got {tuple(block.shape)} with Pr = "
            f"{axes_size(mesh, rows)} and Pc = {axes_size(mesh, columns)}"
        )


def _refuse_block(routine, mesh, block):
    sizes = {axis: mesh.shape[axis] for axis in manual_axes()}
    raise ValueError(
        f"{routine}: the local block of an (n, n) matrix on P ranks has shape (ceil(n / P), n);"
        f" {tuple(block.shape)} fits no P of the mesh {sizes}. With rows of padding below it pass "
        "pad=False, and with columns sharded too in_specs=P(row axis, column axis)"
    )


def _local_index(axes):
    return jax.numpy.int32(jax.lax.axis_index(axes) if axes else 0)
