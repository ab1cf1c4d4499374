"""Derivative rules: `differentiable` for nonlinear functions, `Linear` for linear ones, which also
have a transpose.

A rule works on arrays one transformation level below: on the caller's own arrays if the caller
differentiates eagerly, so that the mesh is inferred as without a derivative. Rules call functions
that have rules themselves, which gives derivatives of higher order.
"""

import abc
import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, mlir
from jax.interpreters import batching as jax_batching

from jaxmg import _compat
from jaxmg._layouts import layouts, shardings
from jaxmg._stacks import batching, sections


def differentiable(function, rule, *arrays) -> typing.Any:
    """Calls ``function(*arrays)`` with a derivative rule: ``rule(primals, tangents)`` returns the
    results and their tangents. The tangent of an array that isn't being differentiated is None.

    Arrays that aren't traced never enter JAX's machinery, which would hide their shardings.
    """
    moving = [i for i, array in enumerate(arrays) if isinstance(array, Tracer)]
    if not _compat.TRANSFORMS or not moving:
        return function(*arrays)
    values = [arrays[i] for i in moving]
    arrays = batching.without(arrays, moving)
    run = jax.custom_jvp(
        lambda *values: jax.tree.map(_in_front, function(*batching.put(arrays, moving, values)))
    )
    # Inside a jit, JAX traces the rule later, when it has already left an enclosing vmap.
    mapped = _compat.mapped_axes()

    @_compat.compiled
    @_compat.default_promotion()
    def jvp(primals, tangents):
        tangents = [
            None if isinstance(t, SymbolicZero) else _placed_like(t, x)
            for t, x in zip(tangents, primals, strict=True)
        ]
        with _compat.inside_vmap(mapped):
            results, moved = rule(
                batching.put(arrays, moving, primals),
                batching.put([None] * len(arrays), moving, tangents),
            )
            results = shardings.outside_batch(results)
            moved = jax.tree.map(
                lambda t, x: still(x) if _is_still(t) else _placed_like(t, x),
                moved, results, is_leaf=_is_still,
            )  # fmt: skip
            return jax.tree.map(_in_front, (results, moved), is_leaf=_is_still)

    run.defjvp(jvp, symbolic_zeros=True)
    return run(*values)


def _in_front(x):
    """Returns ``x``, with its batch as the leading dimension under ``vmap``. Inside a jit, JAX
    assumes that the rule's results have their batch in the same dimension as the function's
    results. If that isn't so, the results come out transposed (0.6.2 to 0.12.0.1;
    findings/jax_custom_jvp_batch_dimension.sh)."""
    return _front.bind(x) if isinstance(x, Tracer) else x


_front = Primitive("jaxmg_front")
_front.def_impl(lambda x: x)
_front.def_abstract_eval(lambda x: x)
mlir.register_lowering(_front, lambda context, x: [x])
jax_batching.primitive_batchers[_front] = lambda arrays, dimensions: (
    _front.bind(jnp.moveaxis(arrays[0], dimensions[0], 0)),
    0,
)
ad.deflinear2(_front, lambda cotangent, x: [_front.bind(cotangent)])


def _placed_like(tangent, result):
    """Shards a tangent like its result on explicit axes. There the sharding is part of the type,
    and a result and its tangent have the same type."""
    if _is_still(tangent) or shardings.explicit_spec(result) is None:
        return tangent
    return _alike.bind(tangent, result)


# A primitive with two operands. When a jitted function is batched, JAX knows only the types of
# single elements; with the batch dimension, results and their tangents may be sharded differently.
_alike = Primitive("jaxmg_alike")
_alike.def_impl(shardings.constrain_like)
_alike.def_abstract_eval(lambda tangent, result: tangent.update(sharding=result.sharding))
mlir.register_lowering(_alike, mlir.lower_fun(shardings.constrain_like, multiple_results=False))


def _alike_jvp(primals, tangents):
    tangent, result = primals
    value, moved = _alike.bind(tangent, result), tangents[0]
    return value, moved if isinstance(moved, ad.Zero) else _alike.bind(moved, result)


def _alike_transpose(cotangent, tangent, result):
    if isinstance(cotangent, ad.Zero):
        return None, None
    return shardings.constrain_like(cotangent, tangent.aval), None


def _alike_batch(arrays, dimensions):
    size, marks, (tangent, result) = sections.in_front(arrays, dimensions)
    if not marks[0]:
        tangent = batching.repeated(tangent, size)
    if not marks[1]:  # as JAX does, repeats the result over the axes that shard the batch
        axes = shardings.leading_axes(tangent)
        place: typing.Any = shardings.explicit_spec(result)
        mesh, spec = place
        placement = batching.Placement(mesh, axes, (spec,))
        result = placement.put(batching.repeated(result, size))
    return _alike.bind(tangent, result), 0


jax_batching.primitive_batchers[_alike] = _alike_batch
ad.primitive_jvps[_alike] = _alike_jvp
ad.primitive_transposes[_alike] = _alike_transpose


def _is_still(tangent):
    return isinstance(tangent, SymbolicZero)


def still(results):
    """Returns zero tangents of ``results``."""
    return jax.tree.map(lambda x: SymbolicZero(jax.typeof(x).to_tangent_aval()), results)


def sum_of(*values):
    """Returns the sum of the values that aren't None, sharded like the first; None if all are."""
    there = [value for value in values if value is not None]
    return functools.reduce(lambda x, y: x + _placed_like(y, x), there) if there else None


def as_composed(function):
    """Returns a rule that differentiates ``function``, an equivalent composition of functions that
    have rules themselves."""

    def rule(primals, tangents):
        moving = [i for i, tangent in enumerate(tangents) if tangent is not None]
        return jax.jvp(
            lambda *values: function(*batching.put(primals, moving, values)),
            [primals[i] for i in moving],
            [tangents[i] for i in moving],
        )

    return rule


class Linear(abc.ABC):
    """A function of arrays that is linear in the last one. The result has the shape and dtype of
    the last array. The function is hashable, because it is a parameter of a JAX primitive."""

    @property
    @abc.abstractmethod
    def layout(self) -> layouts.Layout:
        """The layout of its arrays."""

    @property
    def inside(self) -> bool:
        """Whether its arrays are blocks inside the caller's shard_map."""
        return self.layout.inside

    def _trace(self, arrays):
        if self.inside:  # there the trace also depends on the axes over which arrays vary
            return jax.make_jaxpr(self.run)(*arrays)
        avals = ((array.shape, array.dtype, shardings.named_sharding(array)) for array in arrays)
        return _jaxpr(self, tuple(avals), jax.sharding.get_abstract_mesh(), _compat.x64_enabled())

    @abc.abstractmethod
    def run(self, *arrays) -> typing.Any:
        """Computes the result."""

    @abc.abstractmethod
    def rule(self, primals, tangents):
        """Returns the result and its tangent, as for `differentiable`."""

    @property
    @abc.abstractmethod
    def adjoint(self) -> "Linear":
        """The adjoint with respect to the last array; the other arrays are the same."""

    def cotangent(self, value):
        """Converts a cotangent to the argument of the adjoint."""
        return value

    def batched(self, size, marks, *arrays):
        """Returns the results for a batch. Marked arrays have the batch as leading dimension."""
        if self.layout.is_whole:
            *others, last = arrays
            last = last if marks[-1] else batching.repeated(last, size)
            return Mapped(self, (*marks[:-1], True))(*others, last)
        placement = batching.placement_of_last(self.layout, arrays, marks)
        return batching.in_turn(self, marks, *arrays, placement=placement)

    def __call__(self, *arrays) -> typing.Any:
        if _compat.TRANSFORMS and layouts.traced(arrays):
            return _linear.bind(*arrays, of=self, jaxpr=self._trace(arrays))
        return self.run(*arrays)


class ByColumns(Linear):
    """A linear function of right-hand sides, (n,) or (n, nrhs), whose columns are independent."""

    def batched(self, size, marks, *arrays):
        if any(marks[:-1]):
            return super().batched(size, marks, *arrays)
        *others, b = arrays
        x = batching.from_columns(self(*others, batching.to_columns(b)), b)
        placement = batching.placement_of_last(self.layout, arrays, marks)
        return x if placement is None else placement.put(x)


@functools.lru_cache(maxsize=512)
def _jaxpr(of, avals, mesh, x64):
    """Returns the jaxpr for these shapes, dtypes and shardings in this context. From the jaxpr, jit
    learns which devices a program needs."""
    arrays = (jax.ShapeDtypeStruct(shape, dtype, sharding=s) for shape, dtype, s in avals)
    return jax.make_jaxpr(of.run)(*arrays)


_linear = Primitive("jaxmg_linear")
_linear.def_impl(
    _compat.compiled(_compat.default_promotion()(lambda *arrays, of, jaxpr: of.run(*arrays)))
)
_linear.def_abstract_eval(lambda *avals, of, jaxpr: jaxpr.out_avals[0] if of.inside else avals[-1])
mlir.register_lowering(
    _linear,
    mlir.lower_fun(
        lambda *arrays, of, jaxpr: jaxpr_as_fun(jaxpr)(*arrays)[0], multiple_results=False
    ),
)


@_compat.compiled
@_compat.default_promotion()
def _linear_jvp(primals, tangents, *, of, jaxpr):
    tangents = [
        None if isinstance(t, ad.Zero) else _placed_like(t, x)
        for t, x in zip(tangents, primals, strict=True)
    ]
    result, moved = of.rule(primals, tangents)
    return result, _placed_like(moved, result)


@_compat.compiled
@_compat.default_promotion()
def _linear_transpose(cotangent, *arrays, of, jaxpr):
    if isinstance(cotangent, ad.Zero):
        return (None,) * len(arrays)
    # JAX's transpose doesn't conjugate.
    cotangent = of.cotangent(jnp.conj(cotangent))
    return *(None for _ in arrays[:-1]), jnp.conj(of.adjoint(*arrays[:-1], cotangent))


@_compat.compiled
@_compat.default_promotion()
def _linear_batch(arrays, dimensions, *, of, jaxpr):
    size, marks, arrays = sections.in_front(arrays, dimensions)
    return of.batched(size, marks, *arrays), 0


jax_batching.primitive_batchers[_linear] = _linear_batch
ad.primitive_jvps[_linear] = _linear_jvp
ad.primitive_transposes[_linear] = _linear_transpose


@dataclasses.dataclass(frozen=True)
class Mapped(Linear):
    """A linear function of a batch of whole matrices, by JAX's vmap. The marked arrays, among them
    always the last one, have the batch as their leading dimension.

    Attributes:
        of: the function, with an `alone` layout.
    """

    of: typing.Any
    marks: tuple

    @property
    def layout(self):
        return self.of.layout

    def _map(self, function):
        return jax.vmap(function, [0 if mark else None for mark in self.marks])

    def run(self, *arrays):
        return self._map(self.of.run)(*arrays)

    @property
    def adjoint(self):
        return self._map(self.of.adjoint)

    def rule(self, primals, tangents):
        moving = [i for i, tangent in enumerate(tangents) if tangent is not None]
        axes = [0 if mark else None for mark in self.marks]

        def each(primals, moved):
            return self.of.rule(primals, batching.put([None] * len(primals), moving, moved))

        return jax.vmap(each, (axes, [axes[i] for i in moving]))(
            list(primals), [tangents[i] for i in moving]
        )


@dataclasses.dataclass(frozen=True)
class Spread(Mapped):
    """As `Mapped`, for a function that has a ``program`` for one element. Each device computes its
    part of the batch."""

    size: int

    def run(self, *arrays):
        placement = batching.placement_of_last(self.layout, arrays, self.marks)
        return batching.spread(
            self.layout, self.of.program, self.size, self.marks, *arrays, placement=placement
        )

    def batched(self, size, marks, *arrays):
        both = tuple(a or b for a, b in zip(self.marks, marks, strict=True))
        larger = dataclasses.replace(self, marks=both, size=size * self.size)
        return batching.merged(larger, (size, self.size), (marks, self.marks), *arrays)

    @property
    def adjoint(self):
        return dataclasses.replace(self, of=self.of.adjoint)
