"""Whether a matrix is Hermitian, which the native code, that reads one triangle, can't tell."""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _blocks, _checks, _compat, _mesh, _native, _products, _programs


def nan_unless_hermitian(a, layout):
    """``a`` (n, n), or NaN where it differs from its adjoint by more than rounding.

    Compared are the products of both with one vector, which is a pass over the rows that each rank
    has; to compare the entries would be an exchange of all with all. Differences below 10 n eps
    times the largest entry are rounding, and lie below the backward error of what follows.
    """
    if not a.size:
        return a
    layout = layout.by_rows
    rows = _blocks.split_rows(jax.lax.stop_gradient(a), layout)
    compare = _native.over_ranks(
        layout,
        lambda place, rows: _is_hermitian(place.reshape(2)[0], rows, layout),
        (layout.row_spec,),
        jax.sharding.PartitionSpec(),
    )
    return jnp.where(compare(rows), a, jnp.nan)


def checked(caller, name, a, arrays, mesh, spec):
    """``a`` (n, n) where it is Hermitian. Else raises; NaN where that depends on values which a
    trace doesn't know.

    Args:
        arrays: those of the call, which say where ``a`` is.
    """
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(
            f"{caller}: check=True looks at a square matrix; {name} has shape {tuple(a.shape)}, "
            "with rows of padding"
        )
    if not _mesh.traced(arrays) and _compat.trace_state_clean():
        if not a.size or _found_hermitian((a, *arrays), caller, name, mesh, spec):
            return a
        raise ValueError(
            f"{caller}: {name} is not Hermitian: it differs from its adjoint by more than "
            "rounding, or holds NaN or infinity. Of it the upper triangle would be read alone "
            "(check=False)"
        )
    layout = _mesh.infer(caller, arrays, mesh, spec)
    with _compat.entered(layout.mesh):
        return _nan_unless_hermitian(a, layout)


@functools.partial(jax.jit, static_argnums=1)
def _nan_unless_hermitian(a, layout):
    return nan_unless_hermitian(a, layout)


def _found_hermitian(arrays, caller, name, mesh, spec):
    """Whether the first of the arrays is Hermitian."""
    return bool(_compare(arrays, caller, name, mesh, spec))


@_programs.planned
def _compare(arrays, caller, name, mesh, spec):
    a, *others = arrays
    _checks.matrix(caller, name, a, True, _checks.ALL)
    layout = _mesh.infer(caller, others, mesh, spec)
    call = _programs.Call(
        "is_hermitian", _program, layout, a.shape[0], 0, "", (jax.sharding.PartitionSpec(),)
    )
    run = _programs.runner(call, (a,))
    return lambda a, *_: run(a)[0]


def _program(call, a):
    a = nan_unless_hermitian(_blocks.join_rows(a, call.layout, call.rows), call.layout)
    return (~jnp.isnan(a[0, 0]),)


def _is_hermitian(rank, rows, layout):
    count, n = rows.shape
    dtype = jnp.finfo(rows.dtype).dtype
    probe = _probe(count * layout.ranks, dtype).astype(rows.dtype)
    own = jax.lax.dynamic_slice_in_dim(probe, rank * count, count)
    along = _products.dot(rows, probe[:n], 1, 0)
    across = jnp.pad(_products.dot(own, rows, 0, 0), (0, probe.size - n))
    across = _products.scattered_sum(across, layout).conj()
    # Rows of padding are zeros, and so are the columns that there aren't.
    apart, largest = (
        jax.lax.pmax(jnp.max(jnp.abs(values)), layout.rows) for values in (along - across, rows)
    )
    return apart <= 10 * n * jnp.finfo(dtype).eps * largest


def _probe(count, dtype):
    """Numbers of both signs and of no pattern, for differences not to cancel: D. E. Knuth's
    multiplicative hashing ("The Art of Computer Programming", volume 3, section 6.4)."""
    hashed = jax.lax.iota(jnp.uint32, count) * jnp.uint32(2654435769)
    fraction = (hashed >> 9).astype(dtype) / 2**23
    return jnp.where(fraction < 0.5, fraction - 1, fraction)
