"""The derivative of eigenvalues without eigenvectors, which can be differentiated again even if
eigenvalues are equal.

The tangents of the eigenvalues are diag(X^H dA X). If a function of them has the gradient c with
respect to the eigenvalues, its gradient with respect to A is X diag(c) X^H. The derivative of that
in a direction with N = X^H dA X is

    X F X^H,  F_jj = dc_j,  F_ij = N_ij (c_j - c_i) / (w_j - w_i).

In a symmetric function, this quotient is 0 / 0 if w_i = w_j. Its limit is a number f that relates
dc_j to N_jj among equal eigenvalues: dc_j = f N_jj + (the same for all of them). So if the N_jj
differ, f is a quotient of the differences of dc_j and of N_jj, by least squares. So that they also
differ for simple directions, the eigenvectors of equal eigenvalues are those of the eigensolver
times a reflection.

This holds for derivatives forward over reverse, as `jax.hessian` computes them. Other second
derivatives are infinite or NaN if eigenvalues are equal.
"""

import abc
import dataclasses

import jax
import jax.numpy as jnp

from jaxmg._layouts import layouts, shardings
from jaxmg._matrices import hermitian
from jaxmg._stacks import rotations
from jaxmg._transform import derivatives

# Eigenvalues count as equal if they differ by at most _EQUAL units of rounding, and gradients with
# respect to them if they differ by at most _SAME.
_EQUAL = 16
_SAME = 64


def tangents(layout, a, w, v, a_dot):
    """Returns the tangents of the eigenvalues w of A, with eigenvectors V."""
    arrays = (jax.lax.stop_gradient(x) for x in (w, v))
    diagonal = _Diagonal(layout)(a, *arrays, a_dot)
    values = hermitian.diagonal(layout, hermitian.rows(layout, diagonal))
    return shardings.constrain_like(values, w)


def differentiated(layout, a, w, v):
    """Returns the eigenvalues w of A, with eigenvectors V. Their derivative is `tangents`."""

    def rule(primals, moved):
        a, w, v = primals
        w, a_dot = differentiated(layout, a, w, v), moved[0]
        w_dot = derivatives.still(w) if a_dot is None else tangents(layout, a, w, v, a_dot)
        return w, w_dot

    return derivatives.differentiable(lambda a, w, v: w, rule, a, w, v)


@dataclasses.dataclass(frozen=True)
class _Directional(derivatives.Linear):
    """A linear function of a matrix. Its arrays are (A, w, V, the matrix)."""

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
        """Returns the derivative in the direction dA. The arrays are (A, w, V, the matrix, dA, the
        matrix's tangent)."""

    def basis(self, w, v):
        return _reflected(self.on, hermitian.rows(self.on, v), w)

    def inner(self, x, a):
        moved = hermitian.times(self.on, _whole(self.on, a), x)
        return hermitian.adjoint_times(self.on, x, moved)


class _Diagonal(_Directional):
    """diag(X^H D X), as a diagonal matrix, of a Hermitian D whose upper triangle is read."""

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


class _Composed(_Directional):
    """X diag(C) X^H, as a gradient with respect to the triangle that is read of a Hermitian
    matrix."""

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
        """Returns the gradient X Y^H of a whole Hermitian matrix as a gradient with respect to the
        triangle that `_whole` reads."""
        product = hermitian.times_adjoint(self.on, x, y)
        transposed = jax.vjp(lambda a: _whole(self.on, a), jnp.zeros_like(like))[1]
        return shardings.constrain_like(jnp.conj(transposed(jnp.conj(product))[0]), like)

    @property
    def adjoint(self):
        return _Diagonal(self.on)


def _eigenpairs(layout, a, w, v):
    """Returns (w, V), whose derivatives are those of the eigenvalues and eigenvectors of A. They
    serve derivatives of a second derivative, and are infinite if eigenvalues are equal."""

    def rule(primals, moved):
        a, w, v = primals
        w, v = _eigenpairs(layout, a, w, v)
        if moved[0] is None:
            return (w, v), derivatives.still((w, v))
        x = hermitian.rows(layout, v)
        turned = hermitian.times(layout, _whole(layout, moved[0]), x)
        inner = hermitian.adjoint_times(layout, x, turned)
        w_dot = shardings.constrain_like(hermitian.column_products(layout, x, turned), w)
        turn = hermitian.quotients(layout, inner, w, None)
        v_dot = hermitian.laid_out_like(layout, hermitian.times(layout, x, turn), v)
        return (w, v), (w_dot, v_dot)

    return derivatives.differentiable(lambda a, w, v: (w, v), rule, a, w, v)


def _whole(layout, a):
    return hermitian.full(layout, hermitian.rows(layout, a))


def _clusters(w):
    """Returns (a label for each eigenvalue, the same for equal ones; the number of eigenvalues with
    this label)."""
    larger = jnp.maximum(jnp.abs(w[1:]), jnp.abs(w[:-1]))
    apart = ~(w[1:] - w[:-1] <= _EQUAL * jnp.finfo(w.dtype).eps * larger)
    labels = jnp.concatenate([jnp.zeros(min(len(w), 1), jnp.int32), jnp.cumsum(apart)])
    return labels, _sums(jnp.ones(len(w), jnp.int32), labels)


def _sums(x, labels):
    """Returns for each entry the sum over its cluster, along the first axis."""
    return jax.ops.segment_sum(x, labels, num_segments=len(labels))[labels]


@hermitian.on_mesh
def _reflected(layout, x, w):
    """Returns X with other eigenvectors of equal eigenvalues. Each group of them is multiplied by
    the reflection I - 2 u u^H / ||u||^2."""

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
    """Returns X^H dX; its entries between equal eigenvalues are infinite."""

    def local(rank, inner, w):
        labels, _ = _clusters(w)
        row, column = hermitian._indices(rank, inner)
        own_labels, own_w = (hermitian.own_rows(layout, rank, x[:, None]) for x in (labels, w))
        gap = jnp.where(labels == own_labels, row == column, w - own_w)
        return rotations.divide(jnp.where(row == column, 0, inner), gap)

    return hermitian.over_ranks(layout, local, (inner,), (w,))


@hermitian.on_mesh
def _divided(layout, inner, w, c, c_dot):
    """Returns F with zeros on its diagonal, which depends only on dc."""
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

        def move_equal(b):
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

        # This isn't linear in the tangents, so its transpose is NaN. JAX transposes it only if all
        # of its operands are tangents, so they are a single operand.
        both = jnp.concatenate([inner, c_dot[None].astype(inner.dtype)])
        within = jax.lax.custom_linear_solve(
            lambda x: x, both, lambda _, b: move_equal(b), transposed
        )
        return (apart + within[:-1]).astype(inner.dtype)

    return hermitian.over_ranks(layout, local, (inner,), (w, c, c_dot))
