"""QR of tall matrices that are sharded by rows, in a trace, with derivatives and batches; and
products with such matrices.

Tall matrices are global arrays (m, n) with any m: `blocks.split_rows` gives each rank its rows.
Small matrices, with n rows, are replicated.
"""

import collections.abc
import dataclasses
import functools
import math
import typing

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks, ffi
from jaxmg._layouts import layouts, shardings
from jaxmg._plugin import plugins
from jaxmg._qr import tall_qr
from jaxmg._stacks import batching
from jaxmg._transform import derivatives


def fits(m, n, ranks):
    """Returns whether (m, n) is tall: a rank has at least as many rows of the matrix as of R."""
    return m >= ranks * min(m, n)


def is_whole(m, n, layout):
    """Returns whether one rank computes the QR of a matrix (m, n), m >= n, for all ranks by LAPACK.

    Only CPU devices of one process do this, because they share its cores. The matrix need not be
    tall.
    """
    if layout.platform != "cpu" or len(set(layout.processes)) > 1:
        return False
    return plugins.load("cpu").is_whole_qr(n, -(-m // layout.ranks), layout.ranks)


def qr(a, layout):
    """Returns (Q, R) of a (m, n), m >= n, with the derivative of JAX's `qr`.

    Q is sharded by rows and R is replicated. Squares of A's entries must neither overflow nor
    underflow.
    """

    def rule(primals, tangents):
        """JVP rule (S. F. Walter, L. Lehmann, R. Lamour, Optim. Methods Softw. 27, 2012)."""
        (a,), (a_dot,) = primals, tangents
        q, r = qr(a, layout)
        w = right_solve(layout, a_dot, r)
        h = adjoint_product(layout, q, w)
        half = jnp.tril(h, -1)
        skew = half - half.conj().T
        if jnp.iscomplexobj(h):  # R's diagonal stays real
            skew += jnp.diag(1j * jnp.diagonal(h).imag)
        q_dot = w - times(layout, q, h - skew)
        return (q, r), (shardings.constrain_like(q_dot, q), product(layout, h - skew, r))

    def value(a):
        return batching.batchable(_Factor(layout.by_rows), a)[:2]

    return derivatives.differentiable(value, rule, a)


def factor(a, layout, b=None, below=None, with_q=True) -> typing.Any:
    """Returns `tall_qr.factor_on_rank` of a (m, n) and b (m, nrhs). It has no derivative."""
    arrays = [array for array in (a, b, below) if array is not None]
    of = _Factor(layout.by_rows, with_q, b is not None, below is not None)
    return batching.batchable(of, *arrays)


@dataclasses.dataclass(frozen=True)
class _Factor(batching.Batchable):
    """`factor` as a function of a and, as ``with_b`` and ``with_below`` say, of b and of below."""

    layout: layouts.Layout
    with_q: bool = True
    with_b: bool = False
    with_below: bool = False

    def __call__(self, *arrays):
        layout, rows = self.layout, 1 + self.with_b
        specs = *(layout.row_spec for _ in range(rows)), *(P() for _ in range(self.with_below))
        mapped = ffi.over_ranks(layout, self.on_rank, specs, self.specs)
        split = [blocks.split_rows(array, layout) for array in arrays[:rows]]
        small = [blocks.replicate(array, layout) for array in arrays[rows:]]
        q, *others = mapped(*split, *small)
        q = blocks.join_rows(q, layout, arrays[0].shape[0]) if self.with_q else None
        return q, *others

    @property
    def specs(self):
        """The specs of the results; None for a result that is None."""
        q = self.layout.row_spec if self.with_q else None
        return q, P(), *(3 * (P() if self.with_b else None,))

    def on_rank(self, coordinates, rows, *others):
        b = others[0] if self.with_b else None
        below = others[-1] if self.with_below else None
        return tall_qr.factor_on_rank(self.layout, coordinates, rows, below, b, self.with_q)

    def batched(self, settled, size, marks, *arrays):
        if self.with_b and not marks[0] and marks[1] and not any(marks[2:]):
            return self._columns(size, *arrays)
        shape, layout = arrays[0].shape[-2:], self.layout
        specs = [
            layout.result_spec(shape) if spec == layout.row_spec else spec
            for spec in self.specs
            if spec is not None
        ]
        placement = batching.make_placement(layout, arrays, marks, specs)
        order = math.isqrt(math.prod(shape)) + 1
        faster = batching.is_spread_faster(layout, size, order, arrays[0].dtype)
        if layout.is_whole or faster:
            one = _OnDevice(dataclasses.replace(self, layout=batching.alone(layout)))
            return batching.spread(one.of.layout, one, size, marks, *arrays, placement=placement)
        return batching.in_turn(self, marks, *arrays, placement=placement)

    def _columns(self, size, a, b, *below):
        """Computes a batch of right-hand sides with one matrix, as columns of one call."""
        q, r, c, i, j = self(a, batching.to_columns(b), *below)
        shape = jax.ShapeDtypeStruct((size, len(r), b.shape[2]), b.dtype)
        c, j = batching.from_columns(c, shape), j.reshape(size, -1)
        q, r, i = batching.repeated((q, r, i), size)
        return q, r, c, i, j


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    """A `_Factor` of whole matrices on one device, inside a shard_map."""

    of: _Factor

    def __call__(self, coordinates, *arrays):
        return self.of.on_rank(coordinates, *arrays)


def right_solve(layout, x, r):
    """Returns X R^-1, sharded by rows, of x (m, n) and a triangular R (n, n)."""
    return over_ranks(layout, lambda x, r: tall_qr.right_solve(x, r), (x,), (r,), x.shape[0])


def times(layout, x, w):
    """Returns X W, sharded by rows, of x (m, n) and w (n, k)."""
    dot = functools.partial(tall_qr.dot, layout=layout)
    return over_ranks(layout, dot, (x,), (w,), x.shape[0])


def product(layout, x, y):
    """Returns X Y of small matrices, which every rank computes for itself."""
    dot = functools.partial(tall_qr.dot, layout=layout)
    return dot(x, y) if layout.is_whole else over_ranks(layout, dot, (), (x, y))


def adjoint_product(layout, x, y):
    """Returns X^H Y (n, k), replicated, of x (m, n) and y (m, k)."""
    return over_ranks(layout, lambda x, y: tall_qr.adjoint_product(layout, x, y), (x, y), ())


def residual(layout, a, b, x):
    """Returns B - A X, sharded by rows, of a (m, n), b (m, k) and x (n, k)."""

    def local(a, b, x):
        return b - tall_qr.dot(a, x, layout)

    return over_ranks(layout, local, (a, b), (x,), a.shape[0])


def small(layout, function, *arrays, library=False):
    """Computes ``function`` of replicated arrays on every rank for itself.

    JAX can differentiate the result, unless each device has whole matrices.

    Args:
        library: whether the function calls LAPACK. LAPACK's rounding depends on how its threads
            share the work, so that two CPU devices may compute two different bases of a null space.
            So on CPUs the first rank computes the function for all.
    """
    if layout.is_whole:
        return batching.batchable(_SmallBatch(layout, function), *arrays)
    if library and layout.platform == "cpu":
        return by_first_rank(layout, function, *arrays)
    return over_ranks(layout, function, (), arrays)


def by_first_rank(layout, function, *arrays):
    """Computes ``function`` of replicated arrays on the first rank, for all ranks."""
    layout = layout.by_rows

    def on_rank(coordinates, *arrays):
        zeros = jax.eval_shape(function, *arrays)
        results = jax.lax.cond(
            coordinates.reshape(2)[0] == 0,
            function,
            lambda *_: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), zeros),
            *arrays,
        )
        return jax.tree.map(functools.partial(tall_qr.sum_over_ranks, layout), results)

    mapped = ffi.over_ranks(layout, on_rank, (P(),) * len(arrays), P())
    return mapped(*(blocks.replicate(array, layout) for array in arrays))


@dataclasses.dataclass(frozen=True)
class _SmallBatch(batching.Batchable):
    """`small` for whole matrices. Each device computes its part of a batch."""

    layout: layouts.Layout
    function: collections.abc.Callable

    def __call__(self, *arrays):
        return self.function(*arrays)

    def batched(self, settled, size, marks, *arrays):
        return batching.spread(self.layout, _ManySmall(self), size, marks, *arrays)


@dataclasses.dataclass(frozen=True)
class _ManySmall:
    """An `_SmallBatch` for a device's part of a batch.

    On GPUs it computes all matrices at once, on CPU devices one after the other: JAX's LAPACK
    kernels deadlock if several CPU devices call them with batches (seen with jaxlib 0.10.2).
    """

    of: _SmallBatch

    def compute_all(self, coordinates, *stacks):
        layout, function = self.of.layout, self.of.function
        if layout.platform == "cpu":
            return jax.lax.map(lambda arrays: function(*arrays), stacks)
        return jax.vmap(function)(*stacks)


def over_ranks(layout, local, matrices, others, m=None):
    """Calls ``local`` on each rank with its rows of ``matrices`` and with all of ``others``.

    Args:
        m: number of rows of the result, which is sharded by rows; None for a replicated result.
    """
    layout = layout.by_rows
    specs = *(layout.row_spec for _ in matrices), *(P() for _ in others)
    mapped = ffi.over_ranks(
        layout, lambda _, *arrays: local(*arrays), specs, P() if m is None else layout.row_spec,
        plain=True,
    )  # fmt: skip
    rows = (blocks.split_rows(matrix, layout) for matrix in matrices)
    result = mapped(*rows, *(blocks.replicate(array, layout) for array in others))
    return result if m is None else blocks.join_rows(result, layout, m)
