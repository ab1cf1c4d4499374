"""The derivative of eigenvalues alone, which has a derivative itself where eigenvalues are equal.

The tangents of the eigenvalues are diag(X^H dA X), and the gradient by A of a function of them is
X diag(c) X^H for its gradient c by them. The derivative of that in a direction with N = X^H dA X is

    X F X^H,  F_jj = dc_j,  F_ij = N_ij (c_j - c_i) / (w_j - w_i),

of which the quotient is 0 / 0 where w_i = w_j, in a symmetric function. Its limit there is the part
of the function's second derivative by which dc_j, in equal eigenvalues, differs with N_jj:
dc_j = f N_jj + (the same for all of them). So f is a quotient of these differences, by least
squares, if N_jj differ. For that equal eigenvalues have eigenvectors that no simple direction
leaves alone: those of the eigensolver times a reflection.

That is of a derivative forward over reverse, as `jax.hessian` has it. Others are infinite or NaN
where eigenvalues are equal.
"""

import abc
import dataclasses

import jax
import jax.numpy as jnp

from jaxmg._call import layouts
from jaxmg._transform import derivatives, hermitian, rotations

# How many units of rounding apart eigenvalues, and gradients by them, are taken for equal.
_EQUAL = 16
_SAME = 64


def tangents(layout, a, w, v, a_dot):
    """The tangents of the eigenvalues w of A, with eigenvectors V."""
    arrays = (jax.lax.stop_gradient(x) for x in (w, v))
    diagonal = _Diagonal(layout)(a, *arrays, a_dot)
    values = hermitian.diagonal(layout, hermitian.rows(layout, diagonal))
    return layouts.constrain_like(values, w)


def differentiated(layout, a, w, v):
    """The eigenvalues w of A, with eigenvectors V, of which the derivative is `tangents`."""

    def rule(primals, moved):
        a, w, v = primals
        w, a_dot = differentiated(layout, a, w, v), moved[0]
        w_dot = derivatives.still(w) if a_dot is None else tangents(layout, a, w, v, a_dot)
        return w, w_dot

    return derivatives.differentiable(lambda a, w, v: w, rule, a, w, v)


@dataclasses.dataclass(frozen=True)
class _OfDirection(derivatives.Linear):
    """A linear function of a matrix, of the arrays (A, w, V, the matrix)."""

    on: layouts.Layout

    @property
    def layout(self):
        return self.on

    def rule(self, primals, tangents):
        *point, matrix = primals
        a_dot, *_, moved = tangents
        parts = [] if moved is None else [self(*point, moved)]
        if a_dot is not None:
            parts.append(self.moved(*primals, a_dot, moved))
        return self(*primals), derivatives.sum_of(*parts)

    @abc.abstractmethod
    def moved(self, *arrays):
        """The derivative in the direction of A, of (A, w, V, the matrix, dA, its tangent)."""

    def basis(self, w, v):
        return _reflected(self.on, hermitian.rows(self.on, v), w)

    def inner(self, x, a):
        moved = hermitian.times(self.on, _whole(self.on, a), x)
        return hermitian.adjoint_times(self.on, x, moved)


class _Diagonal(_OfDirection):
    """diag(X^H D X) of a Hermitian D, of which the upper triangle is read, as a diagonal matrix."""

    def run(self, *arrays):
        a, w, v, d = arrays
        x = self.basis(w, v)
        return self._placed(x, hermitian.times(self.on, _whole(self.on, d), x), d)

    def moved(self, a, w, v, d, a_dot, _):
        w, v = _eigenpairs(self.on, a, w, v)
        x = self.basis(w, v)
        turn = _turn(self.on, self.inner(x, a_dot), w)
        x_dot = hermitian.times(self.on, x, turn)
        return self._placed(2 * x_dot, hermitian.times(self.on, _whole(self.on, d), x), d)

    def _placed(self, x, y, like):
        values = hermitian.column_products(self.on, x, y)
        zeros = jnp.zeros_like(hermitian.rows(self.on, like))
        rows = _with_diagonal(self.on, zeros, values)
        return hermitian.laid_out_like(self.on, rows, like)

    @property
    def adjoint(self):
        return _Composed(self.on)


class _Composed(_OfDirection):
    """X diag(C) X^H, as a gradient by what is read of a Hermitian matrix."""

    def run(self, *arrays):
        a, w, v, c = arrays
        x = self.basis(w, v)
        values = hermitian.diagonal(self.on, hermitian.rows(self.on, c))
        return self._as_gradient(hermitian.scaled(self.on, x, values), x, c)

    def moved(self, a, w, v, c, a_dot, c_dot):
        w, v = _eigenpairs(self.on, a, w, v)
        x = self.basis(w, v)
        c_dot = jnp.zeros_like(c) if c_dot is None else c_dot
        values, slopes = (
            hermitian.diagonal(self.on, hermitian.rows(self.on, x)) for x in (c, c_dot)
        )
        inner = _divided(self.on, self.inner(x, a_dot), w, values, slopes)
        return self._as_gradient(hermitian.times(self.on, x, inner), x, c)

    def _as_gradient(self, x, y, like):
        """X Y^H by the adjoint of what reads a Hermitian matrix."""
        product = hermitian.times_adjoint(self.on, x, y)
        transposed = jax.vjp(lambda a: _whole(self.on, a), jnp.zeros_like(like))[1]
        return layouts.constrain_like(jnp.conj(transposed(jnp.conj(product))[0]), like)

    @property
    def adjoint(self):
        return _Diagonal(self.on)


def _eigenpairs(layout, a, w, v):
    """(w, V), of which the derivative is that of the eigenvalues and eigenvectors of A: for
    derivatives of a second derivative, infinite where eigenvalues are equal."""

    def rule(primals, moved):
        a, w, v = primals
        w, v = _eigenpairs(layout, a, w, v)
        if moved[0] is None:
            return (w, v), derivatives.still((w, v))
        x = hermitian.rows(layout, v)
        turned = hermitian.times(layout, _whole(layout, moved[0]), x)
        inner = hermitian.adjoint_times(layout, x, turned)
        w_dot = layouts.constrain_like(hermitian.column_products(layout, x, turned), w)
        turn = hermitian.quotients(layout, inner, w, None)
        v_dot = hermitian.laid_out_like(layout, hermitian.times(layout, x, turn), v)
        return (w, v), (w_dot, v_dot)

    return derivatives.differentiable(lambda a, w, v: (w, v), rule, a, w, v)


def _whole(layout, a):
    return hermitian.full(layout, hermitian.rows(layout, a))


def _clusters(w):
    """(A number for each eigenvalue, which equal ones share; how many share it)"""
    larger = jnp.maximum(jnp.abs(w[1:]), jnp.abs(w[:-1]))
    apart = ~(w[1:] - w[:-1] <= _EQUAL * jnp.finfo(w.dtype).eps * larger)
    labels = jnp.concatenate([jnp.zeros(min(len(w), 1), jnp.int32), jnp.cumsum(apart)])
    return labels, _sums(jnp.ones(len(w), jnp.int32), labels)


def _sums(x, labels):
    """Each entry's sum over its cluster, along the first axis."""
    return jax.ops.segment_sum(x, labels, num_segments=len(labels))[labels]


@hermitian.on_mesh
def _reflected(layout, x, w):
    """X with other eigenvectors of equal eigenvalues: times I - 2 u u^H / ||u||^2 for each."""

    def local(rank, x, w):
        labels, sizes = _clusters(w)
        index = jnp.arange(len(w), dtype=w.dtype)
        u = 1 + jnp.cos(index) / 2
        if jnp.iscomplexobj(x):
            u = jax.lax.complex(u * jnp.cos(index), u * jnp.sin(index))
        u = jnp.where(sizes > 1, u, 0).astype(x.dtype)
        lengths = _sums(jnp.abs(u) ** 2, labels)
        scale = jnp.where(sizes > 1, 2 / jnp.where(lengths == 0, 1, lengths), 0).astype(x.dtype)
        return x - _sums((x * u).T, labels).T * (u.conj() * scale)

    return hermitian.over_ranks(layout, local, (x,), (w,))


@hermitian.on_mesh
def _with_diagonal(layout, a, values):
    def local(rank, a, values):
        row, column = hermitian._indices(rank, a)
        return jnp.where(row == column, values, a).astype(a.dtype)

    return hermitian.over_ranks(layout, local, (a,), (values,))


@hermitian.on_mesh
def _turn(layout, inner, w):
    """X^H dX, infinite between equal eigenvalues."""

    def local(rank, inner, w):
        labels, _ = _clusters(w)
        row, column = hermitian._indices(rank, inner)
        own_labels, own_w = (hermitian.own_rows(layout, rank, x[:, None]) for x in (labels, w))
        gap = jnp.where(labels == own_labels, row == column, w - own_w)
        return rotations.divide(jnp.where(row == column, 0, inner), gap)

    return hermitian.over_ranks(layout, local, (inner,), (w,))


@hermitian.on_mesh
def _divided(layout, inner, w, c, c_dot):
    """F of N but for its diagonal, which is the part of dc alone."""
    eps = float(jnp.finfo(w.dtype).eps)

    def local(rank, inner, w, c, c_dot):
        labels, sizes = _clusters(w)
        row, column = hermitian._indices(rank, inner)
        own_labels, own_w, own_c = (
            hermitian.own_rows(layout, rank, x[:, None]) for x in (labels, w, c)
        )
        equal = (labels == own_labels) & (row != column)
        change = c - own_c
        largest = jnp.maximum(jnp.abs(c), jnp.abs(own_c))
        change = jnp.where(equal & (jnp.abs(change) <= _SAME * eps * largest), 0, change)
        gap = jnp.where(equal, 0, jnp.where(row == column, 1, w - own_w))
        apart = rotations.divide(jnp.where(row == column, 0, inner * change), gap)

        def of_equal(b):
            inner, c_dot = b[:-1], b[-1].real
            own = jnp.sum(jnp.where(row == column, inner.real, 0), axis=1)[:, None]
            zeros = jnp.zeros((len(w), 1), own.dtype)
            diagonal = hermitian._placed(layout, rank, own, zeros)[:, 0]
            means = (_sums(x, labels) / sizes for x in (c_dot, diagonal))
            change, along = (x - mean for x, mean in zip((c_dot, diagonal), means, strict=True))
            factor = _sums(change * along, labels) / _sums(along * along, labels)
            return jnp.pad(jnp.where(equal & (inner != 0), inner * factor, 0), ((0, 1), (0, 0)))

        def transposed(_, b):
            is_lost = jnp.pad(equal, ((0, 1), (0, 0))) & (b != 0)
            return b * jnp.where(is_lost, jnp.nan, 0).astype(b.dtype)

        # Not linear in the tangents, so that its transpose is NaN. JAX transposes it only if all of
        # its operands are tangents, so it has one.
        both = jnp.concatenate([inner, c_dot[None].astype(inner.dtype)])
        within = jax.lax.custom_linear_solve(
            lambda x: x, both, lambda _, b: of_equal(b), transposed
        )
        return (apart + within[:-1]).astype(inner.dtype)

    return hermitian.over_ranks(layout, local, (inner,), (w, c, c_dot))
