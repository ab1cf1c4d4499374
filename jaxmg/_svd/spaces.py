"""Pseudoinverse, condition number, norms, and bases of the range and of the null space by the SVD.

The functions are called in a trace, with matrices that are sharded by rows.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._call import blocks
from jaxmg._linalg import compositions
from jaxmg._matrices import norms, products
from jaxmg._stacks import choice, scaling, sections
from jaxmg._svd import stacks, svd
from jaxmg._transform import derivatives


def _pseudoinverses(platform, options, a):
    """Computes `pseudoinverse` of each matrix of a stack."""
    rtol = jnp.full(len(a), _cutoff(a, *options), jnp.finfo(a.dtype).dtype)
    return _above_stacks(platform, (), a, rtol[:, None, None])


def _cutoff(a, rtol):
    return 10 * max(a.shape[-2:]) * float(jnp.finfo(a.dtype).eps) if rtol is None else rtol


@compositions.program(any_shape=True, compute_stacks=_pseudoinverses)
def pseudoinverse(call, a):
    rtol = _cutoff(a, *call.attributes)
    inverse = functools.partial(pseudoinverse_of, cut=Cut(rtol), layout=call.layout)
    return (scaling.homogeneous(inverse, -1)(a),)


def _above_stacks(platform, options, a, rtol):
    """Computes `pseudoinverse_above` of each matrix of a stack."""
    if not a.size:
        return (jnp.swapaxes(a, -1, -2),)
    function = functools.partial(_pseudoinverse_stack, platform)
    return (scaling.homogeneous(function, -1)(a, rtol[:, 0, 0].real),)


@compositions.program(any_shape=True, compute_stacks=_above_stacks)
def pseudoinverse_above(call, a, rtol):
    """Computes `pseudoinverse` with ``rtol`` as an array (1, 1) of a's dtype."""
    rtol = blocks.replicate(rtol, call.layout)[0, 0].real

    def inverse(a):
        return pseudoinverse_of(a, Cut(0.0), call.layout, rtol)

    return (scaling.homogeneous(inverse, -1)(a),)


def _condition(s, has_nan, p):
    """Returns the condition number from singular values (..., k). If the result is NaN although
    ``a`` has no NaN, returns infinity."""
    if p == "nuc":
        value = jnp.sum(s, axis=-1) * jnp.sum(1 / s, axis=-1)
    else:
        value = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    return jnp.where(jnp.isnan(value) & ~has_nan, jnp.inf, value)


def _condition_stacks(platform, options, a):
    """Computes `condition` of each matrix of a stack."""
    (s,) = svd.relative_values.compute_stacks(platform, (), a)
    return (_condition(s, jnp.isnan(a).any((-2, -1)), *options),)


@compositions.program(any_shape=True, compute_stacks=_condition_stacks, single=(0,))
def condition(call, a):
    """Computes the condition number from singular values."""
    s = svd.values_of(scaling.scaled(a)[0], call.layout)
    return (_condition(s, jnp.isnan(a).any(), *call.attributes),)


def _norm(values, a, ord):
    """Computes the norm from singular values. Some of them may be denormal."""
    if ord != "nuc":
        return (norms.largest(values(a), -1) if ord == 2 else norms.smallest(values(a), -1),)
    return (scaling.homogeneous(lambda a: jnp.sum(values(a), axis=-1), 1)(a),)


def _norm_stacks(platform, options, a):
    """Computes `norm` of each matrix of a stack."""
    return _norm(functools.partial(stacks.singular_values, platform), a, *options)


@compositions.program(any_shape=True, compute_stacks=_norm_stacks)
def norm(call, a):
    """Computes the largest or the smallest singular value, or the sum of all."""
    return _norm(functools.partial(svd.values_of, layout=call.layout), a, *call.attributes)


@compositions.program(any_shape=True)
def range_basis(call, a):
    """Returns (U, rank). Columns of U are zero if their singular values don't count."""
    return _range_basis(scaling.scaled(a)[0], _cut(a, *call.attributes), call.layout)


@compositions.program(any_shape=True)
def null_basis(call, a):
    """Returns (V, rank) with all right singular vectors. Columns of V are zero if their singular
    values count; ``rank`` is their number."""
    return _null_space_basis(scaling.scaled(a)[0], _cut(a, *call.attributes), call.layout)


def _cut(a, rtol, rank):
    """Returns the `Cut` of a matrix, with SciPy's default if ``rtol`` is None."""
    return Cut(max(a.shape) * float(jnp.finfo(a.dtype).eps) if rtol is None else rtol, rank)


@dataclasses.dataclass(frozen=True)
class Cut:
    """Decides which singular values count: those above ``rtol`` times the largest, or the first
    ``rank`` of them."""

    rtol: float
    rank: int | None = None

    def at(self, rtol):
        """Returns the cut with another ``rtol``, which may be traced, or this cut if it is None."""
        return self if rtol is None else dataclasses.replace(self, rtol=rtol)

    def counts(self, s, if_nan=False):
        if self.rank is not None:
            return jnp.arange(len(s)) < self.rank
        return jnp.where(jnp.isnan(s), if_nan, s > self.rtol * s[:1])

    def inverse(self, s):
        """Returns 1 / s for singular values that count, 0 for others, and NaN for NaN."""
        counts = self.counts(s)
        inverse = jnp.where(counts, 1 / jnp.where(counts, s, 1), 0)
        return jnp.where(jnp.isnan(s), s, inverse)


def pseudoinverse_of(a, cut, layout, rtol=None):
    """Returns the Moore-Penrose inverse, with its derivative at constant rank.

    Args:
        rtol: replaces the ``rtol`` of ``cut`` unless None; may be traced.
    """
    if not a.size:
        return jnp.zeros(a.shape[::-1], a.dtype)

    def value(a, rtol):
        u, s, vh = svd.decompose(a, layout)
        inverse = cut.at(rtol).inverse(s).astype(a.dtype)
        v = svd._adjoint(vh, layout)
        return products.rows_times_adjoint(v * inverse, u, layout)

    def rule(primals, tangents):
        """JVP rule (Golub and Pereyra, 1973):

        dP = -P dA P + P P^H dA^H (I - A P) + (I - P A) dA^H P^H P
        """

        def times(x, y):
            return products.rows_times_rows(x, y, layout)

        (a, rtol), (a_dot, _) = primals, tangents
        p = pseudoinverse_of(a, cut, layout, rtol)
        if a_dot is None:
            return p, derivatives.still(p)
        return p, _tangent(times, a, a_dot, p, svd._adjoint(p, layout), svd._adjoint(a_dot, layout))

    return derivatives.differentiable(value, rule, a, rtol)


def _tangent(times_one, a, a_dot, p, p_adjoint, a_dot_adjoint):
    """Returns the tangent of P at constant rank. No intermediate product is larger than P."""

    def times(*matrices):
        if a.shape[-2] >= a.shape[-1]:
            return functools.reduce(times_one, matrices)
        return functools.reduce(lambda y, x: times_one(x, y), reversed(matrices))

    left = times(p, p_adjoint, a_dot_adjoint)
    right = times(a_dot_adjoint, p_adjoint, p)
    p_dot = left - times(left, a, p) + right - times(p, a, right)
    return p_dot - times(p, a_dot, p)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _pseudoinverse_stack(platform, a, rtol):
    """Returns the Moore-Penrose inverses of a (count, m, n) with ``rtol`` (count,)."""
    u, s, vh = stacks.svd(platform, a)
    counts = s > rtol[:, None] * s[:, :1]
    inverse = jnp.where(counts, 1 / jnp.where(counts, s, 1), 0)[:, None, :].astype(a.dtype)
    return choice.multiply(platform, sections.adjoint(vh) * inverse, sections.adjoint(u))


@_pseudoinverse_stack.defjvp
@_compat.default_promotion()
def _(platform, primals, tangents):
    (a, rtol), (a_dot, _) = primals, tangents
    times = functools.partial(choice.multiply, platform)
    p = _pseudoinverse_stack(platform, a, rtol)
    return p, _tangent(times, a, a_dot, p, sections.adjoint(p), sections.adjoint(a_dot))


def _range_basis(a, cut, layout):
    """Returns an orthonormal basis U of A's range, and the rank.

    The derivative holds at constant rank. As the basis isn't unique, it is the tangent of least
    norm: dU = (I - U U^H) dA A^+ U.
    """

    def value(a):
        u, s, _ = svd.decompose(a, layout)
        counts = cut.counts(s, if_nan=True)
        return jnp.where(counts, u, 0), jnp.sum(counts, dtype=jnp.int32)

    def rule(primals, tangents):
        (a,), (a_dot,) = primals, tangents
        u, rank = _range_basis(a, cut, layout)
        if not u.size:
            return (u, rank), (jnp.zeros_like(u), derivatives.still(rank))
        inverse = pseudoinverse_of(a, cut, layout)
        moved = products.rows_times_rows(inverse, u, layout)
        moved = products.rows_times_rows(a_dot, moved, layout)
        inner = products.adjoint_times_rows(u, moved, layout)
        moved = moved - products.rows_times_rows(u, inner, layout)
        return (u, rank), (moved, derivatives.still(rank))

    return derivatives.differentiable(value, rule, a)


def _null_space_basis(a, cut, layout):
    """Returns columns of zeros followed by an orthonormal basis N of A's null space, and the rank.

    The derivative is dN = -A^+ dA N, of least norm as in `_range_basis`.
    """

    def value(a):
        m, n = a.shape
        if not n:
            return a[:0], jnp.zeros((), jnp.int32)
        if m < n:
            v, s, _ = svd._complete(svd._adjoint(a, layout), layout)
        else:
            a, _ = scaling.scaled(a)
            _, s, vh = svd._decompose_tall(svd._r_alone(a, layout), layout)
            v = products.adjoint(vh, layout)
        rank = jnp.sum(cut.counts(s), dtype=jnp.int32)
        return jnp.where(jnp.arange(n) < rank, 0, v), rank

    def rule(primals, tangents):
        (a,), (a_dot,) = primals, tangents
        v, rank = _null_space_basis(a, cut, layout)
        if not a.size:
            return (v, rank), (jnp.zeros_like(v), derivatives.still(rank))
        moved = products.rows_times_rows(a_dot, v, layout)
        inverse = pseudoinverse_of(a, cut, layout)
        v_dot = -products.rows_times_rows(inverse, moved, layout)
        return (v, rank), (v_dot, derivatives.still(rank))

    return derivatives.differentiable(value, rule, a)
