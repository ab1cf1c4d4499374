"""Checks whether a matrix is Hermitian. The native code reads one triangle and can't."""

import functools
import math

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._call import blocks, checks, ffi, programs
from jaxmg._layouts import layouts, meshes, shardings
from jaxmg._matrices import products
from jaxmg._stacks import scaling


def nan_unless_hermitian(a, layout, largest=None, eps=0.0):
    """Returns ``a`` (n, n) if it is Hermitian, else NaN, with NaN as its derivative; see
    `is_hermitian`."""
    if not a.size:
        return a
    if largest is not None:
        factor = jnp.where(is_hermitian(a, layout, largest, eps), 1, jnp.nan)
        return scaling.times(a, factor.astype(largest.dtype))
    # In a batch, explicit axes must shard all operands of a selection alike.
    hermitian = jnp.broadcast_to(is_hermitian(a, layout, largest, eps), a.shape)
    hermitian = shardings.constrain_like(hermitian, a)
    # A constant NaN would have the derivative 0.
    return jnp.where(hermitian, a, a * jnp.where(hermitian, 1, jnp.nan).astype(a.dtype))


def is_hermitian(a, layout, largest=None, eps=0.0):
    """Returns a scalar: whether ``a`` (n, n), n > 0, equals its adjoint up to rounding.

    Compares the products of both with one vector, in one pass over each rank's rows; a comparison
    of entries would need an exchange of all ranks with all. Differences below 20 n eps times the
    largest entry count as rounding, because they are below the solver's backward error.

    Args:
        largest: the largest magnitude of ``a``, near 1. None: ``a`` may be of any size.
        eps: that of a lower precision to which each entry of ``a`` was rounded, so that differences
            below 8 sqrt(n) eps times the largest entry count as rounding, too; 0: none was.
    """
    a = jax.lax.stop_gradient(a)
    if largest is None:
        largest = scaling.largest(a)
        down, _ = scaling.powers_of(largest)
        a, largest = (scaling.times_scale(x, down) for x in (a, largest))
    return _is_rounding(_largest_flaw(a, layout, True, False), a, largest, eps)


def may_be_definite(a, layout, largest, is_hermitian):
    """Returns a scalar: whether ``a`` (n, n), n > 0, is Hermitian with a positive diagonal.

    Args:
        largest: the largest magnitude of ``a``, near 1.
        is_hermitian: whether ``a`` is known to be Hermitian.
    """
    flaw = _largest_flaw(jax.lax.stop_gradient(a), layout, not is_hermitian, True)
    return _is_rounding(flaw, a, largest)


def _is_rounding(flaw, a, largest, eps=0.0):
    """Whether this difference of products counts as rounding. An infinite difference doesn't,
    although the largest entry is then infinite, too."""
    most = 20 * len(a) * float(jnp.finfo(a.dtype).eps) + 8 * math.sqrt(len(a)) * eps
    return (flaw <= largest * most) & jnp.isfinite(flaw)


def _largest_flaw(a, layout, compares, needs_positive):
    """Returns how far ``a`` is from Hermitian (``compares``) and positive (``needs_positive``).

    ``compares``: the largest difference between the products of ``a`` and of its adjoint with one
    vector; otherwise 0. ``needs_positive``: infinity if a diagonal entry isn't positive.
    """
    layout = layout.by_rows

    def local(coordinates, rows):
        rank = coordinates.reshape(2)[0]
        flaw = _differences(rank, rows, layout) if compares else None
        if needs_positive:
            flaw = _infinite_unless_positive(rank, rows, layout, flaw)
        return scaling.largest_of_ranks(flaw, layout.rows)

    compare = ffi.over_ranks(
        layout, local, (layout.row_spec,), jax.sharding.PartitionSpec(), plain=True
    )
    return compare(blocks.split_rows(a, layout))


def _infinite_unless_positive(rank, rows, layout, flaw):
    """Returns each row's ``flaw``, or 0 if that is None; infinity if the row's diagonal entry isn't
    positive."""
    count, n = rows.shape
    diagonal = blocks.diagonal(rank, rows, layout.ranks).real
    positive = diagonal > 0
    if count * layout.ranks > n:  # there are rows of padding
        positive |= rank * count + jax.lax.iota(jnp.int32, count) >= n
    flaw = jnp.zeros_like(diagonal) if flaw is None else flaw
    return jax.lax.select(positive, flaw, jnp.full_like(diagonal, jnp.inf))


def check(caller, name, a, arrays, arguments, triangle="upper"):
    """Returns ``a`` (n, n) if it is Hermitian, else raises. In a trace, returns NaN instead.

    Args:
        arrays: the arrays of the call, from which the placement of ``a`` is inferred.
    """
    mesh, spec = arguments.mesh, arguments.spec
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(
            f"{caller}: check=True needs a square matrix without rows of padding; {name} has shape "
            f"{tuple(a.shape)}"
        )
    if not layouts.traced(arrays) and _compat.trace_state_clean():
        if not a.size or _compare_eagerly((a, *arrays), caller, name, mesh, spec):
            return a
        raise ValueError(
            f"{caller}: {name} is not Hermitian: it differs from its adjoint by more than "
            f"rounding, or holds NaN or infinity. With check=False only its {triangle} triangle "
            "would be read"
        )
    layout = meshes.infer(caller, arrays, mesh, spec)
    with _compat.entered(layout.mesh):
        return _nan_unless_hermitian(a, layout)


@functools.partial(jax.jit, static_argnums=1)
def _nan_unless_hermitian(a, layout):
    return nan_unless_hermitian(a, layout)


def _compare_eagerly(arrays, caller, name, mesh, spec):
    """Whether the first of the arrays is Hermitian."""
    return bool(_compare(arrays, caller, name, mesh, spec))


@programs.cache_plans
def _compare(arrays, caller, name, mesh, spec):
    a, *others = arrays
    checks.matrix(caller, name, a, True, checks.ALL)
    layout = meshes.infer(caller, others, mesh, spec)
    call = programs.Call(
        "is_hermitian", _program, layout, a.shape, 0, "", (jax.sharding.PartitionSpec(),)
    )
    run = programs.runner(call, (a,))
    return lambda a, *_: run(a)[0]


def _program(call, a):
    a = nan_unless_hermitian(blocks.join_rows(a, call.layout, call.shape[0]), call.layout)
    return (~jnp.isnan(a[0, 0]),)


def _differences(rank, rows, layout):
    """Returns, for each row, the difference between the products of a matrix and of its adjoint
    with one vector: a real number, or the larger magnitude of the real and the imaginary part."""
    count, n = rows.shape
    probe = _probe(count * layout.ranks, rows.dtype)
    own = jax.lax.dynamic_slice_in_dim(probe, rank * count, count, allow_negative_indices=False)
    along, across = products.dot(rows, probe[:n], 1, 0), products.dot(own, rows, 0, 0)
    if count * layout.ranks > n:
        across = jnp.pad(across, (0, count * layout.ranks - n))
    # Padding rows are zeros, and so are the products of missing columns.
    apart = along - products.reduce_scatter(across, layout).conj()
    if jnp.iscomplexobj(apart):
        return jnp.maximum(jnp.abs(apart.real), jnp.abs(apart.imag))
    return apart


def _probe(count, dtype):
    """Returns pseudorandom numbers of both signs, of magnitudes from 1 to 2, so that differences
    don't cancel: D. E. Knuth's multiplicative hashing ("The Art of Computer Programming", volume 3,
    section 6.4)."""
    numbers = jax.lax.iota(jnp.int32, count + 1)[1:]  # none of them is 0
    hashed = numbers * jnp.int32(2654435769 - 2**32)
    real = hashed.astype(jnp.finfo(dtype).dtype)
    return (real * 2.0**-31 + jax.lax.sign(real)).astype(dtype)
