"""Factors in lower precision that are kept with their matrix: their creation and their solves.

A `Kind` has the differences between Cholesky (`refined_factor`) and LU (`refined_lu_factor`). The
arrays of a factor are A's rows, the tiles, the overflow if there is one, and arrays that are equal
on all ranks, with the status last. A factor's tangent has the tangent of A in place of A's rows.
"""

import collections.abc
import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks, checks, execute, ffi, programs, record, results
from jaxmg._call.arguments import Arguments, collect
from jaxmg._kept import lower_precision
from jaxmg._layouts import layouts, meshes, shardings
from jaxmg._matrices import hermitian, symmetry
from jaxmg._plugin import plugins
from jaxmg._stacks import batching
from jaxmg._transform import batched_calls, derivatives


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of factor.

    Attributes:
        solve_name: the name of a solve in errors.
        routine: the record of the factorization in lower precision.
        pack: function of (call, results, A by rows) that creates the factor.
        shared: the number of the factor's arrays that are equal on all ranks.
        solve: function of (call, rank coordinates, *arrays with an overflow, right-hand sides) that
            solves on a rank and returns (a, x, status, iterations).
        product, adjoint_product: functions of `hermitian` that multiply by the matrix.
    """

    solve_name: str
    routine: record.Routine
    pack: collections.abc.Callable
    shared: int
    solve: collections.abc.Callable
    product: collections.abc.Callable
    adjoint_product: collections.abc.Callable


def factorize(
    kind, a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check=False,
    caller="",
):  # fmt: skip
    """Creates the factor of a public function with ``refine``, on behalf of a ``caller``."""
    caller = caller or kind.routine.name
    backend = lower_precision.check_options(caller, refine, "native", precision=precision)
    arguments = collect(
        kind.routine, T_A, mesh, matrix_specs, in_specs, pad, backend, caller=caller, refine=refine
    )

    def factorize(a):
        if check:
            a = symmetry.check(caller, "a", a, (a,), arguments)
        return _differentiable(kind, arguments, a)

    if batching.is_batch(a):
        factor = batching.over_leading(caller, kind.routine.names, factorize, (a,), pad)(a)
    else:
        factor = factorize(a)
    if donate and factor.rows is not a and isinstance(a, jax.Array) and not layouts.traced((a,)):
        a.delete()
    return factor


def factor_for(kind, a, arguments):
    """Factors an operand of another routine, for that routine's derivative."""
    return factorize(
        kind, a, arguments.T_A, arguments.mesh, arguments.spec, None, arguments.pad, False, None,
        dict(arguments.options)["refine"], caller=arguments.caller,
    )  # fmt: skip


def rule_of_solve(routine, factor_for):
    """Returns the rule of a routine that solves with ``refine``: it differentiates the equivalent
    composition of ``factor_for`` and the factor's `solve`."""

    def rule(arguments):
        def solve(a, b):
            factor = factor_for(a, arguments)
            x, status, iterations = factor.solve(b, return_status=True, return_iterations=True)
            makers = {"x": lambda: x, "status": lambda: status, "iterations": lambda: iterations}
            return execute.select_results(routine, arguments, makers)

        return derivatives.as_composed(solve)

    return rule


def _differentiable(kind, arguments, a):
    """Returns the factor of ``a``, with a derivative rule: the tangent of the factor has the
    tangent of A as its ``rows``."""

    def derivative(primals, tangents):
        factor = _differentiable(kind, arguments, *primals)
        a_dot = tangents[0]
        rows = hermitian.rows(factor.layout, a_dot) if factor.n else a_dot
        rows = shardings.constrain_like(rows, factor.rows)
        return factor, dataclasses.replace(derivatives.still(factor), rows=rows)

    factor = _Factor(kind, arguments)
    return derivatives.differentiable(lambda a: batching.batchable(factor, a), derivative, a)


@dataclasses.dataclass(frozen=True)
class _Factor(batching.Batchable):
    """The factorization as a function of the matrix."""

    kind: Kind
    arguments: Arguments

    def __call__(self, a):
        call, values = execute.run(self.kind.routine, (a,), self.arguments)
        return self.kind.pack(call, values, _rows(a, call.layout))

    def batched(self, settled, size, marks, a):
        arguments = batched_calls.element_arguments((a,), marks, self.arguments)
        layout = execute.resolve_layout(self.kind.routine, (a,), arguments)
        square = layout.result_spec(a.shape[1:])
        placement = batching.make_placement(layout, (a,), marks, None, square)
        return batching.in_turn(_Factor(self.kind, arguments), marks, a, placement=placement)


def _rows(a, layout):
    """Returns ``a`` by rows, as the native code takes it; ``a`` itself if it is by rows already."""
    n = a.shape[1]
    padded = -(-n // layout.ranks) * layout.ranks
    if n == 0 or (a.shape[0] == padded and programs.lies_by_rows(a, layout)):
        return a
    call = programs.Call("factor_rows", _laid_out, layout, a.shape, 0, "", (layout.row_spec,))
    return programs.runner(call, (a,))(a)[0]


def _laid_out(call, a):
    return (hermitian.rows(call.layout, a),)


@dataclasses.dataclass(frozen=True)
class Solve(batching.Batchable):
    """A solve as a function of the factor's arrays, A's rows first, and right-hand sides. It
    returns (x, status, iterations), with None in place of unwanted results."""

    kind: Kind
    layout: layouts.Layout
    n: int
    tile: int
    refine: str
    wanted: tuple = (True, False, False)
    adjoint: bool = False

    def __call__(self, *arrays):
        return tuple(_solve(arrays, self))

    def batched(self, settled, size, marks, *arrays):
        *factor, b = arrays
        one = batching.element_of(b, marks[-1])
        there = (x for x, want in zip(_RESULTS, self.wanted, strict=True) if want)
        specs = [x.spec(self.layout, None, one) for x in there]
        placement = batching.make_placement(self.layout, arrays, marks, specs)
        if any(marks[:-1]):
            return batching.in_turn(self, marks, *arrays, placement=placement)
        x, *others = self(*factor, batching.to_columns(b))
        values = (batching.from_columns(x, b), *batching.repeated(others, size))
        return values if placement is None else placement.put(values)

    def differentiable(self, *arrays):
        """Calls the solve, with a derivative."""
        return derivatives.differentiable(
            lambda *arrays: batching.batchable(self, *arrays), self._rule, *arrays
        )

    def _rule(self, primals, tangents):
        values = self.differentiable(*primals)
        x_dot = _Solution(self).moved(primals, tangents, values[0])
        return values, (x_dot, *derivatives.still(values[1:]))


@dataclasses.dataclass(frozen=True)
class _Solution(derivatives.ByColumns):
    """The x of a solve as a linear function of the right-hand sides."""

    of: Solve

    @property
    def layout(self):
        return self.of.layout

    def run(self, *arrays):
        return dataclasses.replace(self.of, wanted=(True, False, False))(*arrays)[0]

    @property
    def adjoint(self):
        """The solve with the adjoint of A; itself if A is Hermitian."""
        of = self.of
        if of.kind.product is of.kind.adjoint_product:
            return self
        return dataclasses.replace(self, of=dataclasses.replace(of, adjoint=not of.adjoint))

    def rule(self, primals, tangents):
        x = self(*primals)
        return x, self.moved(primals, tangents, x)

    def moved(self, primals, tangents, x):
        """Returns op(A)^-1 (db - op(dA) x), refined like x."""
        (a_dot, *_, b_dot), moved = tangents, None
        if a_dot is not None and x.size:
            of = self.of
            product = of.kind.adjoint_product if of.adjoint else of.kind.product
            moved = -hermitian.multiply_right_hand_sides(product, of.layout, a_dot, x)
        moved = derivatives.sum_of(b_dot, moved)
        return jnp.zeros_like(x) if moved is None else self(*primals[:-1], moved)


@programs.cache_plans
def _solve(arrays, of):
    name, n, layout = of.kind.solve_name, of.n, of.layout
    meshes.refuse_manual_axes(name)
    (rows, tiles, *_), b = arrays[:-1], arrays[-1]
    checks.array(name, "factor", rows)
    checks.usable(name, "factor", *arrays[1:-1])
    a = jax.ShapeDtypeStruct((n, n), rows.dtype)
    checks.right_hand_side(name, a, b)
    checks.factor(name, tiles, (n, n), layout.ranks)
    if n == 0:
        return lambda *arrays: tuple(
            x.empty(arrays[0], arrays[-1], local=False) if want else None
            for x, want in zip(_RESULTS, of.wanted, strict=True)
        )
    layout = meshes.located(name, layout, arrays)
    plugins.load(layout.platform)
    call = programs.Call(
        name, _program, layout, (n, n), of.tile, "native",
        tuple(x.spec(layout, a, b) for x in _RESULTS),
        (("refine", of.refine), ("kind", of.kind), ("adjoint", of.adjoint)),
        overflow=of.tile if len(arrays) > 3 + of.kind.shared else 0,
    )  # fmt: skip
    return programs.runner(call, arrays, wanted=of.wanted)


_RESULTS: tuple[results.Result, ...] = (
    results.Solution("x"),
    results.Status(),
    results.Status("iterations", "return_iterations"),
)


def _program(call, *arrays):
    """Computes all results of a solve, in a trace."""
    layout, count = call.layout, 3 if call.overflow else 2
    others = tuple(blocks.replicate(array, layout) for array in arrays[count:])
    b = others[-1]

    options = dict(call.attributes)

    def local(coordinates, rows, tiles, *others):
        if not call.overflow:
            others = (jnp.zeros((0, tiles.shape[1]), tiles.dtype), *others)
        coordinates = lower_precision.after(coordinates, others[-1])
        solve = options["kind"].solve
        return solve(call, coordinates, rows, tiles, *others, adjoint=options["adjoint"])[1:]

    rows = [blocks.split_rows(array, layout) for array in arrays[:count]]
    others = (*others[:-1], results.columns(b))
    in_specs = (*(layout.row_spec for _ in rows), *(P() for _ in others))
    mapped = ffi.over_ranks(layout, local, in_specs, tuple(P() for _ in _RESULTS))
    operands: list[jax.Array] = [*rows, *others]
    values = mapped(*operands)
    return tuple(x.whole(value, call, b) for x, value in zip(_RESULTS, values, strict=True))
