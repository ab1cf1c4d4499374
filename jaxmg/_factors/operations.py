"""What the native code does with a kept Cholesky factor: each an `Operation`, declared once. And
what derivatives and batches of it are.

The tangent of a factor is that of A, not of the tiles: in the place of the tiles it has the rows of
dA (`hermitian.rows`), of which the upper triangle counts. Every operation knows its derivative by
that, and nothing else looks into either. What one does to all leaves of a pytree alike (``where``,
``cond``, ``scan``) does the same to both.

With A = L L^H, the derivative of L is L F, where F is the lower triangle, with half the diagonal,
of the Hermitian S = L^-1 dA L^-H (S. P. Smith, J. Comput. Graph. Stat. 4, 1995).
"""

import abc
import collections.abc
import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks, ffi, layouts, plugins, programs, results
from jaxmg._transform import at_once, batching, derivatives, hermitian

# Up to which order all factors that a device has of a batch are worked with at once.
ORDERS_AT_ONCE = (("gpu", 2048), ("cpu", 64))
# The values of APPLY's attribute ``operation``, with A = L L^H.
SOLVE, FORWARD, BACKWARD, LOWER, LOWER_H = range(5)
_ADJOINTS = {SOLVE: SOLVE, FORWARD: BACKWARD, BACKWARD: FORWARD, LOWER: LOWER_H, LOWER_H: LOWER}


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A native routine that takes a factor, and right-hand sides where its result is like them.

    Attributes:
        native: its name; after "jaxmg_" the FFI target.
        result: what it gives.
        by_rows: whether the right-hand sides lie on the ranks by rows, as many as A has.
        in_place: whether the result takes the memory of the factor's tiles. XLA copies them first
            where the factor is still needed.
    """

    native: str
    result: results.Result
    by_rows: bool = False
    in_place: bool = False

    def on_rank(self, call, place, tiles, *others):
        """What a rank puts to the result, of its rows and of right-hand sides in columns."""
        n = tiles.shape[1]
        others = others if call.overflow else (jnp.zeros((0, n), tiles.dtype), *others)
        (value,) = ffi.call(
            f"jaxmg_{self.native}", call.layout, call.tile, call.backend, (place, tiles, *others),
            (self.result.native(call, tiles, *others[1:]),),
            in_place=int(self.in_place), differing=int(self.result.differs),
            n=n, **dict(call.attributes),
        )  # fmt: skip
        value = self.result.finished(value, place.reshape(2)[0])
        return self.result.part(value, call.layout, tiles)

    def program(self, call, tiles, *others):
        """The global result; traced."""
        layout, count = call.layout, 1 if call.overflow else 0
        overflow, b = others[:count], others[count:]
        by_rows, replicated = (b, ()) if self.by_rows else ((), b)
        rows = [blocks.split_rows(array, layout) for array in (tiles, *overflow, *by_rows)]
        replicated = tuple(blocks.replicate(array, layout) for array in replicated)
        in_specs = (*(layout.row_spec for _ in rows), *(P() for _ in replicated))
        out_specs = layout.row_spec if self.result.differs else P()
        local = functools.partial(self.on_rank, call)
        mapped = ffi.over_ranks(layout, local, in_specs, out_specs)
        value = mapped(*rows, *map(results.columns, replicated))
        return (self.result.whole(value, call, *replicated),)


APPLY = Operation("factor_apply", results.Solution("x"))
SOLVE_ROWS = Operation("factor_solve_rows", results.Tiles("x"), by_rows=True)
INVERT = Operation("factor_invert", results.Matrix("a_inv"), in_place=True)
DIAGONAL = Operation("factor_diagonal", results.RealVector("diagonal"))
ROWS = Operation("factor_rows", results.UpperTriangle("u"), in_place=True)


@dataclasses.dataclass(frozen=True)
class Kept:
    """A factor without its arrays: what identifies it to a trace, on behalf of ``routine``.

    Its functions take the arrays of the factor first: the tiles, and the overflow where it has one.
    """

    routine: str
    layout: layouts.Layout
    n: int
    tile: int
    overflows: bool
    products: int

    def _plain(self, native, *arrays, **attributes):
        """The result of the native code."""
        operation = _OfFactor(self, native, tuple(attributes.items()))
        return batching.batchable(operation, *arrays)

    def check(self, *arrays, by_rows=False):
        """Raises unless these can be a factor and right-hand sides of it."""
        if self.layout.inside:
            return
        layouts.refuse_manual_axes(self.routine)
        tiles, *others = arrays
        checks.array(self.routine, "factor", tiles, checks.ALL)
        checks.usable(self.routine, "factor", *others[: self.overflows])
        checks.kept(self.routine, tiles, self.n, self.layout.ranks)
        a = jax.ShapeDtypeStruct((self.n, self.n), tiles.dtype)
        for array in () if by_rows else others[self.overflows :]:
            checks.right_hand_side(self.routine, a, array, checks.ALL)

    def apply(self, operation, *arrays):
        """What APPLY does by ``operation``; of the last array."""
        if layouts.traced(arrays):
            self.check(*arrays)
        return _Apply(self, operation)(*arrays)

    def invert(self, *arrays):
        """The inverse of A."""
        run = functools.partial(self._plain, INVERT, products=self.products)
        return self._differentiable(run, self._invert_rule, arrays)

    def diagonal(self, *arrays):
        """The diagonal of L."""
        run = functools.partial(self._plain, DIAGONAL)
        return self._differentiable(run, self._diagonal_rule, arrays)

    def upper(self, *arrays):
        """U = L^H."""
        run = functools.partial(self._plain, ROWS)
        return self._differentiable(run, self._upper_rule, arrays)

    def logdet(self, log_det, *arrays):
        """log(det(A)), which ``log_det`` is."""
        return self._differentiable(
            lambda *arrays: arrays[-1], self._logdet_rule, (*arrays, log_det)
        )

    def reduced(self, factor, a_dot):
        """S = L^-1 dA L^-H by rows."""
        solve = functools.partial(_SolveRows(self, inverse=False), *factor)
        half = solve(hermitian.full(self.layout, a_dot))
        return solve(hermitian.adjoint(self.layout, half))

    def _differentiable(self, run, rule, arrays):
        """``run(*arrays)``, of which ``rule`` gives the derivative where A moves; where only other
        leaves of a factor do, it has none."""

        def derivative(primals, tangents):
            if tangents[0] is not None:
                return rule(primals, tangents)
            found = self._differentiable(run, rule, primals)
            return found, jnp.zeros_like(found)

        return derivatives.differentiable(run, derivative, *arrays)

    def _invert_rule(self, primals, tangents):
        inverse = self.invert(*primals)
        rows = hermitian.rows(self.layout, inverse)
        half = hermitian.times(self.layout, rows, hermitian.full(self.layout, tangents[0]))
        tangent = -hermitian.times(self.layout, half, rows)
        return inverse, hermitian.as_given(self.layout, tangent, inverse)

    def _diagonal_rule(self, primals, tangents):
        found = self.diagonal(*primals)
        reduced = self.reduced(primals, tangents[0])
        return found, found * hermitian.diagonal(self.layout, reduced) / 2

    def _upper_rule(self, primals, tangents):
        upper = self.upper(*primals)
        half = hermitian.half(self.layout, self.reduced(primals, tangents[0]))
        rows = hermitian.rows(self.layout, upper)
        tangent = hermitian.times(self.layout, half, rows)
        return upper, hermitian.as_given(self.layout, tangent, upper)

    def _logdet_rule(self, primals, tangents):
        *factor, log_det = primals
        inverse = hermitian.rows(self.layout, self.invert(*factor))
        tangent = hermitian.trace(self.layout, inverse, tangents[0]).astype(log_det.dtype)
        # Inside a shard_map its shape is (1,), and it varies with the right-hand sides beside it.
        tangent = _compat.vary(tangent.reshape(log_det.shape), _compat.varying_axes(log_det))
        return self.logdet(log_det, *factor), layouts.constrain_like(tangent, log_det)


@dataclasses.dataclass(frozen=True)
class _OfFactor(batching.Batchable):
    """An operation on a factor with its attributes, a function of the arrays."""

    of: Kept
    operation: Operation
    attributes: tuple

    def __call__(self, *arrays):
        if self.of.layout.inside:
            return _inside(self, *arrays)
        return _run(arrays, self.of, self.operation, self.attributes)

    def batched(self, settled, size, marks, *arrays):
        place = self._placement(marks, arrays)
        if batching.is_alone(self.of.layout):
            return batching.spread(self.of.layout, self.program, size, marks, *arrays, place=place)
        return batching.in_turn(self, marks, *arrays, place=place)

    def _placement(self, marks, arrays):
        of, parts = self.of, 1 + self.of.overflows
        a = jax.ShapeDtypeStruct((of.n, of.n), arrays[0].dtype)
        each = list(zip(arrays, marks, strict=True))[parts:]
        b = [batching.of_one(array, mark) for array, mark in each]
        spec = self.operation.result.spec(of.layout, a, *b)
        return batching.placement(of.layout, arrays, marks, (spec,))

    @property
    def program(self):
        layout, n = self.of.layout, self.of.n
        function = _AT_ONCE.get(self.operation.native)
        plain = dict(self.attributes).get("products", checks.DEFAULT) in _PLAIN
        if function is None or self.of.overflows or not plain:
            return _OnDevice(self)
        faster = at_once.AtOnce(function, ORDERS_AT_ONCE)
        return _AllOnDevice(self) if faster.is_faster(layout, n) else _OnDevice(self)

    def on_rank(self, place, arrays):
        """Of a rank's rows, inside a shard_map: (what it puts to the result, the call, b)."""
        operation, parts = self.operation, 1 + self.of.overflows
        factor, b = arrays[:parts], arrays[parts:]
        columns = b if operation.by_rows else map(results.columns, b)
        call = self.call(factor[0], *b)
        return operation.on_rank(call, place, *factor, *columns), call, b

    def call(self, tiles, *b):
        """As the cache of programs has it."""
        of, operation = self.of, self.operation
        a = jax.ShapeDtypeStruct((of.n, of.n), tiles.dtype)
        spec = operation.result.spec(of.layout, a, *b)
        return programs.Call(
            operation.native, operation.program, of.layout, of.n, of.tile, "native", (spec,),
            self.attributes, overflow=of.tile * of.overflows,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    """The same on a device that has all of a factor, inside a shard_map."""

    of: _OfFactor

    def __call__(self, place, *arrays):
        value, call, b = self.of.on_rank(place, arrays)
        return self.of.operation.result.whole(value, call, *b)


@dataclasses.dataclass(frozen=True)
class _AllOnDevice:
    """The same for all factors of a batch that a device has, by JAX's own routines."""

    of: _OfFactor

    def of_all(self, place, u, *b):
        function = _AT_ONCE[self.of.operation.native]
        return function(jnp.triu(u), *b, **dict(self.of.attributes))


def _apply_at_once(u, b, operation):
    if not b.size:
        return b
    if operation == SOLVE:
        return at_once.solve(u, b)
    if operation in (FORWARD, BACKWARD):
        return at_once.solve_upper(u, b, adjoint=operation == FORWARD)
    factor = u if operation == LOWER_H else jnp.swapaxes(u, -1, -2).conj()
    columns = b[..., None] if b.ndim == 2 else b
    return at_once.multiply(factor, columns).reshape(b.shape)


def _solve_rows_at_once(u, b, inverse):
    return at_once.solve_upper(u, b, adjoint=bool(inverse), left=False)


# Of stacks of upper factors U, of which A = U^H U, as a rank that has all of one has it.
_AT_ONCE: dict[str, collections.abc.Callable[..., typing.Any]] = {
    APPLY.native: _apply_at_once,
    SOLVE_ROWS.native: _solve_rows_at_once,
    INVERT.native: lambda u, products: at_once.inverse(u),
    DIAGONAL.native: lambda u: jnp.diagonal(u, axis1=-2, axis2=-1).real,
    ROWS.native: lambda u: u,
}
_PLAIN = (checks.PRODUCTS["highest"], checks.DEFAULT)


@functools.partial(jax.jit, static_argnums=0)
@_compat.default_promotion()
def _inside(of, *arrays):
    """An `_OfFactor` of a rank's rows, inside a shard_map of the caller's. Where he runs that
    eagerly XLA may end the process as it compiles a native call in place by itself."""
    layout = of.of.layout
    value, _, b = of.on_rank(layouts.local_place(layout), arrays)
    return of.operation.result.on_rank(value, layout, arrays[0], *b)


class _OfRightHandSides(derivatives.Linear):
    """What is linear in right-hand sides."""

    of: Kept

    @property
    @abc.abstractmethod
    def native(self) -> _OfFactor:
        """What runs."""

    @property
    def layout(self):
        return self.of.layout

    @property
    def program(self):
        return self.native.program

    def run(self, *arrays):
        return self.native(*arrays)

    def batched(self, size, marks, *arrays):
        *factor, b = arrays
        if not batching.is_alone(self.layout):
            return super().batched(size, marks, *arrays)
        if not marks[-1]:
            place = batching.like_last(self.layout, arrays, marks)
            b = batching.repeated(b, size)
            b = b if place is None else place.put(b)
        return derivatives.Spread(self, size, (*marks[:-1], True))(*factor, b)


@dataclasses.dataclass(frozen=True)
class _Apply(derivatives.ByColumns, _OfRightHandSides):
    """APPLY as a linear function of the right-hand sides."""

    of: Kept
    operation: int

    def __call__(self, *arrays):
        if not self.inside:
            return super().__call__(*arrays)
        *factor, b = map(jnp.asarray, arrays)
        alone = [axis for axis in _compat.varying_axes(b) if self.layout.mesh.shape[axis] == 1]
        b = jax.lax.psum(b, alone) if alone else b
        return super().__call__(*factor, _compat.vary(b, layouts.shared_axes(self.layout, *arrays)))

    def cotangent(self, value):
        """Where a shard_map doesn't track what varies, a number that all ranks have counts once for
        each of them, and the cotangent is the sum of all ranks'. As each of them applies the
        adjoint to that sum, it takes its share."""
        layout = self.layout
        if not (layout.inside and layout.rows) or _compat.tracks_varying(layout.rows[0]):
            return value
        return jax.lax.psum(value, layout.rows) / layout.ranks

    @property
    def native(self):
        return _OfFactor(self.of, APPLY, (("operation", self.operation),))

    @property
    def adjoint(self):
        return dataclasses.replace(self, operation=_ADJOINTS[self.operation])

    def rule(self, primals, tangents):
        *factor, b = primals
        a_dot, b_dot = tangents[0], tangents[-1]
        x = self(*primals)
        if a_dot is None:
            return x, jnp.zeros_like(x) if b_dot is None else self(*factor, b_dot)
        before, after = self._moved(factor, a_dot, b, x)
        moved = derivatives.sum_of(b_dot, before)
        return x, derivatives.sum_of(after, None if moved is None else self(*factor, moved))

    def _moved(self, factor, a_dot, b, x):
        """What the tangent of A adds to that of b, and to that of the result."""

        def times(product, matrix, vector):
            return hermitian.of_right_hand_sides(product, self.of.layout, matrix, vector)

        if self.operation == SOLVE:
            return -times(hermitian.product, a_dot, x), None
        reduced = self.of.reduced(factor, a_dot)
        if self.operation == FORWARD:
            return None, -times(hermitian.half_adjoint_product, reduced, x)
        if self.operation == BACKWARD:
            return -times(hermitian.half_product, reduced, b), None
        if self.operation == LOWER:
            return times(hermitian.half_adjoint_product, reduced, b), None
        return None, times(hermitian.half_product, reduced, x)


@dataclasses.dataclass(frozen=True)
class _SolveRows(_OfRightHandSides):
    """B L^-H, or B L^-1 where ``inverse``, of a matrix B by rows."""

    of: Kept
    inverse: bool

    @property
    def native(self):
        return _OfFactor(self.of, SOLVE_ROWS, (("inverse", self.inverse),))

    @property
    def adjoint(self):
        return dataclasses.replace(self, inverse=not self.inverse)

    def rule(self, primals, tangents):
        *factor, b = primals
        a_dot, b_dot = tangents[0], tangents[-1]
        x, layout = self(*primals), self.of.layout
        if a_dot is None:
            return x, jnp.zeros_like(x) if b_dot is None else self(*factor, b_dot)
        half = hermitian.half(layout, self.of.reduced(factor, a_dot))
        if self.inverse:  # d(B L^-1) = (dB - B F) L^-1
            moved = -hermitian.times_adjoint(layout, b, half)
            return x, self(*factor, derivatives.sum_of(b_dot, moved))
        moved = -hermitian.times(layout, x, half)  # d(B L^-H) = dB L^-H - B L^-H F^H
        return x, moved if b_dot is None else self(*factor, b_dot) + moved


@programs.planned
def _run(arrays, of, operation, attributes):
    of.check(*arrays, by_rows=operation.by_rows)
    parts = 1 + of.overflows
    tiles, b = arrays[0], arrays[parts:]
    if of.n == 0:
        return lambda tiles, *b: operation.result.empty(tiles, *b, local=False)
    layout = layouts.located(of.routine, of.layout, arrays)
    plugins.load(layout.platform)
    here = dataclasses.replace(of, layout=layout)
    run = programs.runner(_OfFactor(here, operation, attributes).call(tiles, *b), arrays)
    return lambda *arrays: run(*arrays)[0]
