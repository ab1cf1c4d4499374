"""A function that one of several CPU devices computes for all, as a JAX primitive.

    rows of all ranks  --root_exchange-->  the root: the function  --root_exchange-->  results

The root is the rank that comes last, so that the others wait only for the results.

The derivative consists of two functions of this kind. The first one also returns the arrays that
the second one, which is linear, needs. These arrays stay on the first device, which is then the
root of both functions. The transpose of the linear function, and batches, are of this kind too.
"""

import dataclasses
import functools
import itertools
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, ffi
from jaxmg._layouts import layouts
from jaxmg._plugin import plugins
from jaxmg._stacks import sections

# The native routine.
NATIVE = "root_exchange"
# Placements of an operand or a result. ROWS: by rows. WHOLE: whole on all devices. OWN: an array
# (devices, ...) with one element on each device, of which only that of the first rank is used.
ROWS, WHOLE, OWN = "rows", "whole", "own"
# The arrays that a derivative needs are copied to all devices if they have at most this many bytes.
# The root of the derivative is then the rank that comes last, too. Larger arrays stay on the first
# rank, because copying them would take long.
MOST_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True)
class First:
    """A function of arrays that one rank computes.

    Attributes:
        layout: the layout of arrays by rows.
        jaxpr: the function of whole arrays; traced by `trace`.
        operands, results: how each lies.
    """

    layout: layouts.Layout
    jaxpr: typing.Any
    operands: tuple
    results: tuple

    def __call__(self, *arrays):
        """Returns the results, a tuple."""
        context = jax.sharding.get_abstract_mesh(), _compat.x64_enabled()
        avals = tuple((x.shape, x.dtype) for x in arrays)
        jaxpr = _jaxpr(self, avals, *context)
        return tuple(_first.bind(*arrays, of=self, jaxpr=jaxpr, context=context))

    def run(self, *arrays):
        layout, wholes, shapes = self.layout, self.jaxpr.in_avals, self.jaxpr.out_avals
        parts = [_part(x, kind, layout) for x, kind in zip(shapes, self.results, strict=True)]

        def on_rank(coordinates, *arrays):
            values = [
                x[0] if kind == OWN else x for x, kind in zip(arrays, self.operands, strict=True)
            ]
            rows = [i for i, kind in enumerate(self.operands) if kind == ROWS]
            exchange = functools.partial(_exchange, layout, coordinates)
            # The rank that comes last finds all parts there, and need not wait for any other.
            by_last = bool(rows) and OWN not in (*self.operands, *self.results)
            is_root: tuple = ()
            if rows:
                whole = [wholes[i] for i in rows]
                number = [jax.ShapeDtypeStruct((), np.int32)] * by_last
                gathered = exchange(True, [values[i] for i in rows], [*whole, *number])
                values = _put(values, rows, gathered[: len(rows)])
                is_root = gathered[len(rows) :]
            values = jax.lax.cond(
                is_root[0] == 1 if is_root else coordinates.reshape(2)[0] == 0,
                jaxpr_as_fun(self.jaxpr),
                lambda *_: [jnp.zeros(x.shape, x.dtype) for x in shapes],
                *values,
            )
            moving = [i for i, x in enumerate(parts) if x is not None and x.size]
            if moving:
                sent, to = [values[i] for i in moving], [parts[i] for i in moving]
                values = _put(values, moving, exchange(False, [*sent, *is_root], to))
            empty = [i for i, x in enumerate(parts) if x is not None and not x.size]
            nothing = [jnp.zeros(x.shape, x.dtype) for x in parts if x is not None and not x.size]
            values = _put(values, empty, nothing)
            return tuple(
                x[None] if kind == OWN else x for x, kind in zip(values, self.results, strict=True)
            )

        specs = {ROWS: layout.row_spec, WHOLE: P(), OWN: P(layout.mesh.axis_names)}
        mapped = ffi.over_ranks(
            layout, on_rank, tuple(specs[kind] for kind in self.operands),
            tuple(specs[kind] for kind in self.results),
        )  # fmt: skip
        return mapped(*(
            blocks.split_rows(x, layout) if kind == ROWS else x
            for x, kind in zip(arrays, self.operands, strict=True)
        ))  # fmt: skip

    def linearized(self, moving):
        """Returns two `First` objects and the indices of the results that have a derivative.

        The first object computes the results and the arrays that the derivative needs, the second
        computes the derivative from these arrays and the tangents of the operands ``moving``.
        """
        found: dict = {}

        def values(*arrays):
            def function(*moved):
                return jaxpr_as_fun(self.jaxpr)(*_put(arrays, moving, moved))

            results, linear = jax.linearize(function, *(arrays[i] for i in moving))
            leaves, tree = jax.tree.flatten(linear)  # the leaves are the arrays that it needs
            found.update(tree=tree, count=len(leaves))
            return [*results, *leaves]

        primal = trace(self.layout, values, *self.jaxpr.in_avals)
        smooth = tuple(
            i for i, x in enumerate(self.jaxpr.out_avals) if jnp.issubdtype(x.dtype, jnp.inexact)
        )

        def derivative(*arrays):
            linear = jax.tree.unflatten(found["tree"], arrays[: found["count"]])
            tangents = linear(*arrays[found["count"] :])
            return [tangents[i] for i in smooth]

        needed = primal.out_avals[len(self.results) :]
        small = sum(x.size * x.dtype.itemsize for x in needed) <= MOST_BYTES
        own = (WHOLE if small else OWN,) * found["count"]
        tangents = [self.jaxpr.in_avals[i] for i in moving]
        linear = trace(self.layout, derivative, *needed, *tangents)
        return (
            First(self.layout, primal, self.operands, self.results + own),
            First(
                self.layout, linear, own + tuple(self.operands[i] for i in moving),
                tuple(self.results[i] for i in smooth),
            ),
            smooth,
        )  # fmt: skip

    def transposed(self, moving):
        """Returns the transpose of this `First`, which is linear in its operands ``moving``. The
        transpose takes the other operands and the cotangents of the results, and returns the
        cotangents of ``moving``."""
        still = [i for i in range(len(self.operands)) if i not in moving]

        def function(*arrays):
            fixed, cotangents = arrays[: len(still)], arrays[len(still) :]

            def linear(*moved):
                values = _put([None] * len(self.operands), still, fixed)
                return jaxpr_as_fun(self.jaxpr)(*_put(values, moving, moved))

            ones = (self.jaxpr.in_avals[i] for i in moving)
            primals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ones]
            return list(jax.linear_transpose(linear, *primals)(list(cotangents)))

        fixed = [self.jaxpr.in_avals[i] for i in still]
        jaxpr = trace(self.layout, function, *fixed, *self.jaxpr.out_avals)
        kinds = tuple(self.operands[i] for i in still)
        each = zip(moving, jaxpr.out_avals, strict=True)
        results = tuple(kind_of(self.operands[i], x.shape, self.layout) for i, x in each)
        return First(self.layout, jaxpr, kinds + self.results, results)

    def pruned(self, used):
        """Returns the `First` of the results that ``used`` marks, and marks of the operands that it
        needs."""
        jaxpr, needs = _compat.pruned(self.jaxpr, used)
        operands = tuple(itertools.compress(self.operands, needs))
        results = tuple(itertools.compress(self.results, used))
        return First(self.layout, jaxpr, operands, results), tuple(needs)

    def batched(self, size, marks):
        """Returns the `First` of a batch. The batch is the leading dimension of marked operands and
        of all results, or the second dimension, after that of the devices, of those that are
        `OWN`."""
        mapped = [i for i, mark in enumerate(marks) if mark]

        # One after the other: the rules of functions in ``jaxpr`` would spread a batch.
        def function(*arrays):
            return jax.lax.map(
                lambda each: jaxpr_as_fun(self.jaxpr)(*_put(arrays, mapped, each)),
                [arrays[i] for i in mapped],
            )

        avals = [
            jax.ShapeDtypeStruct((size, *x.shape) if mark else x.shape, x.dtype)
            for x, mark in zip(self.jaxpr.in_avals, marks, strict=True)
        ]
        jaxpr = trace(self.layout, function, *avals)
        operands = tuple(
            WHOLE if mark and kind == ROWS else kind
            for kind, mark in zip(self.operands, marks, strict=True)
        )
        results = tuple(WHOLE if kind == ROWS else kind for kind in self.results)
        return First(self.layout, jaxpr, operands, results)


def kind_of(kind, shape, layout):
    """Returns ``kind``, or WHOLE in place of ROWS if the ranks don't divide the rows of a result of
    this shape."""
    return WHOLE if kind == ROWS and shape[0] % layout.ranks else kind


def trace(layout, function, *avals):
    """Returns the jaxpr of a function that one device of ``layout`` computes."""
    mesh = layout.mesh.abstract_mesh
    mesh = mesh.update_axis_types(dict.fromkeys(mesh.axis_names, AxisType.Manual))
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]
    # The function is traced for the context that it gets inside the `shard_map`.
    with _compat.alone(), _compat.use_abstract_mesh(mesh):
        return jax.make_jaxpr(_compat.default_promotion()(lambda *arrays: function(*arrays)))(
            *shapes
        )


def _part(aval, kind, layout):
    """Returns the shape of a rank's part of a result; None if it isn't sent."""
    if kind == OWN:
        return None
    rows = aval.shape[0] // layout.ranks if kind == ROWS else None
    shape = aval.shape if rows is None else (rows, *aval.shape[1:])
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def _put(values, positions, others):
    values = list(values)
    for i, x in zip(positions, others, strict=True):
        values[i] = x
    return values


def _exchange(layout, coordinates, gathers, arrays, shapes):
    """Moves parts of arrays to one rank, the root, or arrays of the root to all ranks.

    The root is rank 0, unless a gather has an int32 as an additional result. Then the root is the
    rank that comes last; the number is 1 on the root and 0 on other ranks, and becomes the last
    operand of the exchange that sends the root's arrays to all.
    """
    plugins.load(layout.platform)
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in shapes)
    return ffi.call(
        f"jaxmg_{NATIVE}", layout, 0, "native", (coordinates, *arrays), shapes,
        in_place=0, differing=len(shapes), n=1, gathers=gathers,
    )  # fmt: skip


@functools.lru_cache(maxsize=512)
def _jaxpr(of, avals, mesh, x64):
    """Returns the jaxpr of `First.run`, from which jit learns which devices a program needs."""
    return jax.make_jaxpr(of.run)(*(jax.ShapeDtypeStruct(*aval) for aval in avals))


@functools.lru_cache(maxsize=512)
def _derived(of, name, *arguments):
    """Returns ``of.name(*arguments)``, so that a derivative is traced once."""
    return getattr(of, name)(*arguments)


_first = Primitive("jaxmg_first")
_first.multiple_results = True
_first.def_impl(
    _compat.compiled(lambda *arrays, of, jaxpr, context: jax.jit(jaxpr_as_fun(jaxpr))(*arrays))
)
_first.def_abstract_eval(lambda *avals, of, jaxpr, context: jaxpr.out_avals)
mlir.register_lowering(
    _first,
    mlir.lower_fun(
        lambda *arrays, of, jaxpr, context: jaxpr_as_fun(jaxpr)(*arrays), multiple_results=True
    ),
)


@_compat.compiled
def _jvp(primals, tangents, *, of, jaxpr, context):
    moving = tuple(i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero))
    primal, linear, smooth = _derived(of, "linearized", moving)
    values = primal(*primals)
    results, needed = values[: len(of.results)], values[len(of.results) :]
    moved = linear(*needed, *(tangents[i] for i in moving))
    zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results]
    return results, _put(zeros, smooth, moved)


@_compat.compiled
def _transpose(cotangents, *arrays, of, jaxpr, context):
    moving = [i for i, x in enumerate(arrays) if ad.is_undefined_primal(x)]
    results = _put([None] * len(arrays), moving, [ad.Zero(arrays[i].aval) for i in moving])
    used = tuple(not isinstance(x, ad.Zero) for x in cotangents)
    if not any(used):
        return results
    of, needs = _derived(of, "pruned", used)
    places = list(itertools.compress(range(len(arrays)), needs))
    linear = tuple(i for i, place in enumerate(places) if place in moving)
    if not linear:
        return results
    still = [arrays[place] for i, place in enumerate(places) if i not in linear]
    cotangents = itertools.compress(cotangents, used)
    found = _derived(of, "transposed", linear)(*still, *cotangents)
    return _put(results, [places[i] for i in linear], found)


@_compat.compiled
def _batch(arrays, dimensions, *, of, jaxpr, context):
    size, marks, arrays = sections.in_front(arrays, dimensions)
    each = zip(arrays, marks, of.operands, strict=True)
    arrays = [jnp.moveaxis(x, 0, 1) if mark and kind == OWN else x for x, mark, kind in each]
    results = _derived(of, "batched", size, marks)(*arrays)
    return results, [1 if kind == OWN else 0 for kind in of.results]


def _prune(used, equation):
    """Leaves out results that aren't used, as those of a derivative of one result are, and operands
    that the others don't need."""
    if not any(used):
        return [False] * len(equation.invars), None
    of, needs = _derived(equation.params["of"], "pruned", tuple(used))
    if not any(needs) or all((*used, *needs)):
        return [True] * len(equation.invars), equation
    operands = list(itertools.compress(equation.invars, needs))
    context = equation.params["context"]
    avals = tuple((x.aval.shape, x.aval.dtype) for x in operands)
    with _compat.use_abstract_mesh(context[0]):
        jaxpr = _jaxpr(of, avals, *context)
    params = {"of": of, "jaxpr": jaxpr, "context": context}
    results = list(itertools.compress(equation.outvars, used))
    return list(needs), equation.replace(invars=operands, outvars=results, params=params)


ad.primitive_jvps[_first] = _jvp
ad.primitive_transposes[_first] = _transpose
batching.primitive_batchers[_first] = _batch
_compat.prune_by(_first, _prune)
