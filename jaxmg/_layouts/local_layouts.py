"""Infers the layout of a matrix from a rank's block of it, inside the caller's shard_map."""

import itertools

import jax
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._layouts.layouts import Layout, axes_names, axes_size, entry_axes
from jaxmg._layouts.meshes import check_spec, manual_axes, with_processes


def infer_local(routine, block, concrete, spec, pad, square=True):
    """Returns the layout of the matrix that has ``block`` as its local part, inside a shard_map.

    Without a spec, the axes follow from the shape of the block and from the axes over which JAX
    knows the block to vary; more than one solution is an error. Inside a shard_map, JAX doesn't
    tell which processes have the devices; a ``concrete`` mesh does.
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
        # An axis of one device shards no columns, but it says that the caller has blocks.
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
    """Returns this device's rank, inside the caller's shard_map."""
    return _local_index(layout.rows)


def local_coordinates(layout):
    """Returns [rank, group of replicas] of this device, inside the caller's shard_map."""
    return jax.numpy.stack([local_rank(layout), _local_index(layout.others)])


def summed(value, layout):
    """Returns the sum of ``value`` over the ranks, inside a shard_map. If the trace tracks varying
    axes, it knows that the sum is the same on all ranks."""
    alone = [axis for axis in _compat.varying_axes(value) if layout.mesh.shape[axis] == 1]
    axes = (*layout.rows, *(axis for axis in alone if axis not in layout.rows))
    return jax.lax.psum(value, axes) if axes else value


def shared_axes(layout, *arrays):
    """Returns the axes that separate groups of replicas of these arrays, inside the caller's
    shard_map. Even results that all ranks share vary over them. Nothing varies along an axis of one
    device."""
    varying = frozenset().union(*map(_compat.varying_axes, arrays))
    return frozenset(
        axis for axis in varying if axis not in layout.rows and layout.mesh.shape[axis] > 1
    )


def _fitting_axes(routine, mesh, block, pad, square):
    """Returns the axes over which the rows of ``block`` are sharded. Raises if its shape and the
    trace permit more than one answer, because a wrong one would solve another matrix."""
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
            f" for A, such as in_specs=P({fitting[-1]!r}, None): the order of the axes matters"
        )
    return fitting[0]


def _possible_axes(mesh, block):
    """Returns the manual axes of more than one rank over which ``block`` may be sharded: all of
    them or, if the trace tracks varying axes, those over which the block varies."""
    wide = frozenset(axis for axis in manual_axes() if mesh.shape[axis] > 1)
    if wide and _compat.tracks_varying(next(iter(wide))):
        return wide & _compat.varying_axes(block)
    return wide


def _fits(mesh, block, pad, axes, square):
    """Whether ``block`` may be a rank's rows of a matrix sharded over ``axes``. Rows beyond those
    of a square matrix are the caller's padding; an (m, n) matrix may have any number of rows."""
    if not square:
        return True
    rows, n = block.shape
    ranks = axes_size(mesh, axes)
    return rows == -(-n // ranks) or (not pad and n % ranks == 0 and rows > n // ranks)


def _check_block(routine, mesh, block, pad, rows, columns, square):
    """Raises unless ``block`` can be a rank's part of a matrix sharded over these axes."""
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
        f" {tuple(block.shape)} fits no P of the mesh {sizes}. If it has rows of padding below, "
        "pass pad=False; if columns are sharded too, in_specs=P(row axis, column axis)"
    )


def _local_index(axes):
    return jax.numpy.int32(jax.lax.axis_index(axes) if axes else 0)
