"""A few eigenpairs of a Hermitian matrix that is sharded by rows, or of an operator, in a trace."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks, ffi
from jaxmg._eigen import linalg as eigh_linalg
from jaxmg._krylov.operators import by_rows
from jaxmg._lanczos import iteration, pair_rules
from jaxmg._lanczos import sizes as sizing
from jaxmg._layouts import layouts
from jaxmg._linalg import compositions
from jaxmg._matrices import collective_products, products
from jaxmg._qr import tall, tall_qr
from jaxmg._stacks import batching, scaling
from jaxmg._svd import polar
from jaxmg._transform import derivatives


@compositions.program(single=(0, 2))
def by_lanczos(call, a, *start):
    """Returns `iteration.Pairs` of the Hermitian A by block Lanczos."""
    (problem,), layout = call.attributes, call.layout

    def of(*arrays):
        return batching.batchable(_OfMatrix(layout, problem), *arrays)

    def rule(primals, tangents):
        found = derivatives.differentiable(of, rule, *primals)
        if tangents[0] is None:
            return found, derivatives.still(found)
        down, up = scaling.scale_of(primals[0])
        before, behind = scaling.halves(down, jnp.ones_like(down))

        def multiply(a, x):
            return scaling.times(_times(a, scaling.times(x, before), layout), behind)

        w, moved = scaling.times(found.w, down), multiply(tangents[0], found.v)
        product = functools.partial(multiply, primals[0])
        w_dot, v_dot = pair_rules.tangents(layout, product, w, found.v, moved, problem.iterations)
        still = derivatives.still(found)
        return found, still._replace(w=scaling.times(w_dot, up), v=v_dot)

    return derivatives.differentiable(of, rule, a, *start)


@compositions.program(single=(0, 2))
def by_eigh(call, a, *start):
    """Returns `iteration.Pairs` of the Hermitian A from all of its eigenpairs."""
    (problem,) = call.attributes
    return _from_all(call.layout, problem, a)


def of_operator(layout, problem, operator, start, arrays):
    """Returns `iteration.Pairs` of an operator.

    Args:
        operator: an `operators.Traced`.
        start: (n, m), a start; None: none.
        arrays: those of the operator.
    """
    starts = start is not None
    one = _OfOperator(layout.by_rows, problem, operator, starts)
    arrays = (start, *arrays) if starts else arrays
    if one.is_small:
        return one(*arrays)

    def of(*arrays):
        return batching.batchable(one, *arrays)

    def rule(primals, tangents):
        found = derivatives.differentiable(of, rule, *primals)
        still = derivatives.still(found)
        values, moves = primals[starts:], tangents[starts:]
        moving = [i for i, tangent in enumerate(moves) if tangent is not None]
        if not moving:
            return found, still

        def multiply(x, *some):
            x = by_rows(x, layout)
            return by_rows(operator.with_arrays(batching.put(values, moving, some))(x), layout)

        some = [values[i] for i in moving]
        _, moved = jax.jvp(lambda *some: multiply(found.v, *some), some, [moves[i] for i in moving])
        w_dot, v_dot = pair_rules.tangents(
            layout, lambda x: multiply(x, *some), found.w, found.v, moved, problem.iterations
        )
        return found, still._replace(w=w_dot, v=v_dot)

    return derivatives.differentiable(of, rule, *arrays)


def _times(a, x, layout):
    """Returns A X of matrices that are sharded by rows."""
    return products.rows_times_rows(a, x, layout)


def _from_all(layout, problem, a):
    w, v = eigh_linalg.eigenpairs_of(a, layout, compositions.HERMITIAN)
    order = _wanted(w, problem.which, problem.sizes.k)
    w, v = w[order], polar.by_rows(v, layout)[:, order]
    residuals = _residuals(layout, *map(jax.lax.stop_gradient, (a, w, v)))
    status = jnp.sum(~jnp.isfinite(w)).astype(jnp.int32)
    none = jnp.int32(0)
    return iteration.Pairs(w, v, residuals, none, none, status)


def _wanted(w, which, k):
    """Returns the indices, ascending, of the k wanted ones of ascending values."""
    n = len(w)
    low = {"SA": k, "LA": 0, "BE": k // 2}
    if which == "LM":
        return jnp.sort(jnp.argsort(-jnp.abs(w))[:k])
    first, last = jnp.arange(low[which]), jnp.arange(n - k + low[which], n)
    return jnp.concatenate([first, last])


def _residuals(layout, a, w, v):
    """Returns the norms of A v - w v, computed with a scaled A."""
    down, up = scaling.scale_of(a)
    before, behind = scaling.halves(down, jnp.ones_like(down))
    v = blocks.replicate(v, layout)
    y = scaling.times(tall.times(layout, a, scaling.times(v, before)), behind)

    def squares(y, v, w):
        rest = y - v * w.astype(v.dtype)
        return tall_qr.sum_over_ranks(layout, jnp.sum(jnp.square(jnp.abs(rest)), axis=0))

    sums = tall.over_ranks(layout, squares, (y, v), (scaling.times(w, down),))
    return scaling.times(jnp.sqrt(sums), up)


@dataclasses.dataclass(frozen=True)
class _Pairs(batching.Batchable):
    layout: layouts.Layout
    problem: iteration.Problem

    def specs(self, layout):
        return P(), layout.row_spec, P(), P(), P(), P()

    def padded(self, start):
        """Returns a start, (rows,) or (rows, m), as a block."""
        start = start.reshape(len(start), -1)[:, : self.problem.sizes.block]
        return jnp.pad(start, ((0, 0), (0, self.problem.sizes.block - start.shape[1])))

    def batched(self, settled, size, marks, *arrays):
        layout, sizes = self.layout, self.problem.sizes
        specs = P(), layout.result_spec((sizes.n, sizes.k)), P(), P(), P(), P()
        placement = batching.make_placement(layout, arrays, marks, specs)
        if layout.is_whole:
            one = _OnDevice(dataclasses.replace(self, layout=batching.alone(layout)))
            return batching.spread(one.of.layout, one, size, marks, *arrays, placement=placement)
        return batching.in_turn(self, marks, *arrays, placement=placement)


@dataclasses.dataclass(frozen=True)
class _OfMatrix(_Pairs):
    """The pairs of a matrix. The whole iteration runs on the ranks, inside one shard_map."""

    def __call__(self, a, *start) -> typing.Any:
        layout = self.layout.by_rows
        arrays = a, *map(self.padded, start)
        of = tuple(layout.row_spec for _ in arrays), self.specs(layout)
        mapped = ffi.over_ranks(layout, lambda *arrays: tuple(self.on_rank(*arrays)), *of)
        w, v, *others = mapped(*(blocks.split_rows(array, layout) for array in arrays))
        return iteration.Pairs(w, blocks.join_rows(v, layout, len(a)), *others)

    def on_rank(self, coordinates, rows, *start):
        layout, sizes = self.layout, self.problem.sizes
        down, up = scaling.powers_of(scaling.largest_of_ranks(rows, layout.rows))
        before, behind = scaling.halves(down, jnp.ones_like(down))

        def multiply(x):
            x = collective_products.all_gather(scaling.times(x, before), layout)[: sizes.n]
            return scaling.times(tall_qr.dot(rows, x, layout), behind)

        begin = start[0] if start else jnp.zeros((len(rows), sizes.block), rows.dtype)
        steps = iteration.Steps(layout, coordinates)
        found = iteration.run(steps, self.problem, multiply, self.padded(begin))
        w, residuals = (scaling.times(x, up) for x in (found.w, found.residuals))
        return found._replace(w=w, residuals=residuals)


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    """`_OfMatrix` of whole matrices on one device, inside a shard_map."""

    of: typing.Any

    def __call__(self, coordinates, *arrays):
        return tuple(self.of.on_rank(coordinates, *arrays))


@dataclasses.dataclass(frozen=True)
class _OfOperator(_Pairs):
    """The pairs of an operator, as a function of the start, if ``starts``, and of its arrays.

    Attributes:
        operator: an `operators.Traced` without its arrays.
    """

    operator: typing.Any
    starts: bool

    @property
    def is_small(self):
        """Whether all eigenpairs are computed."""
        return not self.problem.sizes.fits(sizing.OF_OPERATOR)

    def __call__(self, *arrays):
        layout, problem, sizes = self.layout, self.problem, self.problem.sizes
        start, arrays = arrays[: self.starts], arrays[self.starts :]
        function = self.operator.with_arrays(arrays)
        dtype = self.operator.dtype
        if self.is_small:
            (eye,) = ffi.meet_first(layout, by_rows(jnp.eye(sizes.n, dtype=dtype), layout))
            return _from_all(layout, problem, by_rows(function(eye), layout))

        def multiply(x):
            x = by_rows(blocks.join_rows(x, layout, sizes.n), layout)
            return blocks.split_rows(function(x), layout)

        begin = self.padded(start[0]) if start else jnp.zeros((sizes.n, sizes.block), dtype)
        (begin,) = ffi.meet_first(layout, begin)
        steps = iteration.Steps(layout)
        found = iteration.run(steps, problem, multiply, blocks.split_rows(begin, layout))
        return found._replace(v=blocks.join_rows(found.v, layout, sizes.n))


def sharded(block, layout):
    """Returns the shape of vectors (n, m) with their sharding by `by_rows`, where it is a part of
    their type."""
    if not layout.explicit:
        return block
    sharding = layout.sharding(_spec_of_vectors(block.shape[0], layout))
    return jax.ShapeDtypeStruct(block.shape, block.dtype, sharding=sharding)


def _spec_of_vectors(n, layout):
    return P() if n % layout.ranks else layout.row_spec
