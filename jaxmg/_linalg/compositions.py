"""Runs the functions of `jaxmg.linalg`. Each is a program: a composition of routines and products
that is compiled as a whole. The families' `linalg.py` have the functions and their
programs."""

import collections.abc
import dataclasses
import functools
import inspect
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks, ffi, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._layouts import layouts, meshes, shardings
from jaxmg._layouts.layouts import WHOLE
from jaxmg._linalg import halves, on_one, shares, whole
from jaxmg._matrices import products, symmetry
from jaxmg._stacks import batching, choice, scaling

_FLOATS = (*checks.DTYPES, *checks.HALVES)
# Products need no native code. So they also take integers, whose powers have the same dtype in JAX.
_INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))

# The part of a matrix that is read: a triangle, or all of it. HERMITIAN also requires a Hermitian
# matrix.
UPPER, LOWER, HERMITIAN, ANY = "upper", "lower", "hermitian", "any"
# SciPy's names of the structure to assume of a matrix; "": none.
ASSUMED = {
    "pos": "pos", "positive definite": "pos", "her": "her", "hermitian": "her", "sym": "sym",
    "symmetric": "sym", "gen": "gen", "general": "gen", None: "",
}  # fmt: skip


def triangle(lower):
    return LOWER if lower else UPPER


def plan(arrays, name, program, results, mesh, spec, *options, pack=None):
    """Returns a function of arrays such as these that runs ``program(call, *arrays)``.

    The program is compiled as a whole, or traced with its caller. A single result is returned
    without a tuple.

    Args:
        arrays: the matrix, right-hand sides, and further arrays that aren't promoted.
        results: for each result its kind: "matrix", sharded like the first array; "like b";
            "small", replicated; or the shape of a matrix, which determines its sharding. Or a
            function of the layout that returns the kinds.
        options: attributes of the call, which the program reads.
        pack: function that makes the public function's return value from the results.
    """
    if spec is not None:
        spec = matrix_spec(f"linalg.{name}", spec, None)
    for argument, array in zip(_names(name), arrays, strict=False):
        checks.is_an_array(f"linalg.{name}", argument, array)
        checks.usable(f"linalg.{name}", argument, array)
    promoted = arrays
    if not program.is_product(*options):
        promoted = (*promote(name, *arrays[:2]), *arrays[2:])
    if halves.is_half(promoted[0]):
        program = halves.of(program, str(promoted[0].dtype))
    planned: Any = _plan_promoted(promoted, name, program, results, mesh, spec, *options)
    moves = any(a is not b for a, b in zip(promoted, arrays, strict=True))
    if not moves and pack is None:
        return planned

    def run(*arrays):
        arrays = (*promote(name, *arrays[:2]), *arrays[2:]) if moves else arrays
        values = planned(*arrays)
        return values if pack is None else pack(*values)

    return run


run = programs.cache_plans(plan)


def _plan_promoted(arrays, name, program, results, mesh, spec, *options):
    if not any(map(batching.is_batch, arrays)):
        return _plan_one(arrays, name, program, results, mesh, spec, *options)
    mesh, spec = where_each_is(name, arrays[0], mesh, spec)
    counts = [max(array.ndim - 2, 0) for array in arrays]
    lie = whole.places(mesh, arrays, counts)
    batch = _jit_batch(lie, name, program, results, mesh, spec, *options)
    # Under vmap the call isn't compiled by itself, so that its batch and vmap's become one.
    return inspect.unwrap(batch) if _compat.batched_here(arrays) else batch


def _plan_one(arrays, name, program, results, mesh, spec, *options):
    """As `plan`, for one matrix; inside `jax.vmap` for an element of the batch."""
    if not any(map(_compat.transformation, arrays)):
        return _plan_program(arrays, name, program, results, mesh, spec, *options)
    if not program.is_product(*options):
        for argument, array in zip(_names(name), arrays, strict=False):
            checks.transformable(f"linalg.{name}", argument, array)
    mesh, spec = seen_below(name, arrays, mesh, spec, not program.by_library)
    batched = _compat.batched_here(arrays)
    if batched and checks.ALL and (spec is WHOLE or program.takes_stacks(options)):
        _check(arrays, name, program, results, options)
        one = _Shared(name, program, results, mesh, spec, options)
        return functools.partial(batching.batchable, one)
    return _jit_run(name, program, results, mesh, spec, *options)


@functools.lru_cache(maxsize=512)
def _jit_run(*call):
    """Returns a compiled function of traced arrays. Without the jit JAX would compile operation by
    operation when it differentiates or batches eagerly."""
    return jax.jit(lambda *arrays: _plan_program(arrays, *call)(*arrays))


def seen_below(name, arrays, mesh, spec, may_be_whole=True):
    """Returns the mesh and the spec of arrays that are being differentiated or batched. The spec is
    `WHOLE` if each device is to have whole matrices."""
    called = f"linalg.{name}"
    meshes.refuse_manual_axes(called)
    layout = meshes.infer(called, arrays, mesh, spec)
    if layout.is_whole or (may_be_whole and checks.ALL and whole.holds(layout, arrays[0])):
        return layout.mesh, WHOLE
    return layout.mesh, layout.spec


@functools.lru_cache(maxsize=512)
def _jit_batch(lie, name, program, results, mesh, spec, *options):
    def each(*arrays):
        return _plan_one(arrays, name, program, results, mesh, spec, *options)(*arrays)

    dtypes, square = _dtypes(program, options), not program.any_shape
    with_b = _takes_b(program, results)

    @jax.jit
    def run(*arrays):
        found = over_leading(name, each, arrays, dtypes, square, with_b)
        return _lay(lie, name, results, mesh, spec, arrays, found)

    return run


def _lay(lie, name, results, mesh, spec, arrays, found):
    """Places ``found``, the results of a batch, as the `whole.Places` ``lie`` says; leaves them
    where they are if ``lie`` is None."""
    if lie is None:
        return found
    kinds: Any = results
    if callable(kinds):
        layout, batch = meshes.infer(f"linalg.{name}", arrays, mesh, spec), arrays[0]
        if whole.holds(layout, batch, math.prod(batch.shape[:-2])):
            layout = layouts.alone(layout.mesh)
        kinds = kinds(layout)
    return lie.put(kinds, found)


def _takes_b(program, results):
    """Returns whether a program takes right-hand sides."""
    like_b = not callable(results) and "like b" in results
    return like_b or program.with_b


def _dtypes(program, options):
    """Returns the dtypes of the arrays that a program takes."""
    return _FLOATS + (_INTEGERS if program.is_product(*options) else ())


def matrix_name(name):
    """Returns the name of the argument of function ``name`` that is the matrix."""
    return meshes.matrix_name(f"linalg.{name}")


def _names(name):
    """Returns the names of a function's array arguments, for errors."""
    return matrix_name(name), "c" if name == "qr_multiply" else "b"


def promote(name, *arrays, names=None):
    """Promotes the arrays of function ``name`` to one inexact dtype, as JAX does."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1 and jnp.issubdtype(arrays[0].dtype, jnp.inexact):
        return arrays
    for argument, array in zip(names or _names(name), arrays, strict=False):
        checks.double_precision(f"linalg.{name}", argument, array)
    scalars = [
        jax.ShapeDtypeStruct((), array.dtype, weak_type=getattr(array, "weak_type", False))
        for array in arrays
    ]
    # JAX's exp of one array, and divide of two, promote by these rules.
    try:
        dtype = jax.eval_shape(jnp.exp if len(scalars) == 1 else jnp.divide, *scalars).dtype
    except (TypeError, ValueError):
        checks.promotable(f"linalg.{name}", names or _names(name), arrays)
        raise
    return tuple(array if array.dtype == dtype else array.astype(dtype) for array in arrays)


def over_leading(name, function, arrays, dtypes=_FLOATS, square=True, with_b=False):
    """Calls ``function`` for each matrix of a batch, and right-hand sides. Their leading dimensions
    broadcast against each other as in NumPy."""
    called, names = f"linalg.{name}", _names(name)
    for argument, array in zip(names, arrays, strict=False):
        checks.array(called, argument, array, checks.ALL, dtypes)
    a, *b = arrays
    checks.batch(called, names[0], a, True, square)
    if with_b:
        checks.batch_of_right_hand_sides(called, names, arrays, square)
    if not b or b[0].ndim <= 2 or b[0].shape[:-2] == a.shape[:-2]:
        return batching.over_leading(called, names, function, arrays, dtypes=dtypes, square=square)(
            *arrays
        )
    try:
        leading = np.broadcast_shapes(*(array.shape[:-2] for array in arrays))
    except ValueError:
        raise ValueError(
            f"{called}: the leading dimensions of {names[1]}, of shape {tuple(b[0].shape)}, don't "
            f"broadcast against those of {names[0]}, of shape {tuple(a.shape)}"
        ) from None
    # An array that lacks a dimension, or has size 1 where the other has more, isn't mapped over it.
    there = []
    for array in arrays:
        sizes = (1,) * (len(leading) - max(array.ndim - 2, 0)) + array.shape[:-2]
        there.append([size == most for size, most in zip(sizes, leading, strict=True)])
    arrays = [
        array.reshape(*itertools.compress(leading, marks), *array.shape[-2:])
        for array, marks in zip(arrays, there, strict=True)
    ]
    for axis in reversed(range(len(leading))):
        function = jax.vmap(function, [0 if marks[axis] else None for marks in there])
    return function(*arrays)


def where_each_is(name, a, mesh, spec):
    """Returns the mesh and the spec for each matrix of a batch."""
    on = meshes.mesh_of(f"linalg.{name}", (a,)) if mesh is None else mesh
    sharding = shardings.sharding_below(a)
    if spec is not None or sharding is None or sharding.mesh != on:
        return on, spec
    each = P(*sharding.spec[a.ndim - 2 :])
    return on, each if any(each) else None


@dataclasses.dataclass(frozen=True)
class _Shared(batching.Batchable):
    """`run` of a program that has a function of stacks (`shares`), or of whole matrices.

    Each device computes its share of a batch if one matrix fits on it.
    """

    name: str
    program: Any
    results: Any
    mesh: Any
    spec: Any
    options: tuple

    @property
    def by_jax(self):
        return True

    def __call__(self, *arrays):
        call = self.name, self.program, self.results, self.mesh, self.spec, *self.options
        return _plan_one(arrays, *call)(*arrays)

    def batched(self, settled, size, marks, *arrays):
        values = self._map(size, marks, arrays)
        lie = whole.places(self.mesh, arrays, [int(mark) for mark in marks])
        return _lay(lie, self.name, self.results, self.mesh, self.spec, arrays, values)

    def _map(self, size, marks, arrays):
        ones = [batching.element_of(x, mark) for x, mark in zip(arrays, marks, strict=True)]
        if marks[0] and self.program.takes_stacks(self.options):
            layout = meshes.infer(f"linalg.{self.name}", ones, self.mesh, self.spec)
            share = shares.Share(self.program, self.options, layout.platform, layout.mesh.size)
            order = whole.order_of(ones[0].shape)
            if ones[0].size and batching.is_spread_faster(layout, size, order, ones[0].dtype):
                specs = _specs(layout, self.results, ones)
                placement = batching.make_placement(layout, arrays, marks, specs)
                values = batching.spread(
                    batching.alone(layout), share, size, marks, *arrays, placement=placement
                )
                return values[0] if len(values) == 1 else values
        run = _jit_run(self.name, self.program, self.results, self.mesh, self.spec, *self.options)
        if self.spec is WHOLE and marks[0]:
            return whole.over_devices(run, self.mesh, size, tuple(marks), *arrays)
        return jax.vmap(run, [0 if mark else None for mark in marks])(*arrays)


def _check(arrays, name, program, results, options):
    """Raises an error if the program can't take the arrays."""
    called, a = f"linalg.{name}", arrays[0]
    square = not program.any_shape
    checks.matrix(
        called, matrix_name(name), a, True, checks.ALL, _dtypes(program, options), square=square
    )
    if _takes_b(program, results):
        checks.right_hand_side(called, a, arrays[1], checks.ALL, square, _FLOATS)


def _specs(layout, results, arrays):
    """Returns the spec of each result."""
    kinds: Any = results(layout) if callable(results) else results
    specs = {
        "matrix": lambda: layout.result_spec(arrays[0].shape),
        "like b": lambda: shardings.spec_of(arrays[1], layout),
        "small": P,
    }
    return tuple(
        layout.result_spec(result) if isinstance(result, tuple) else specs[result]()
        for result in kinds
    )


def _plan_program(arrays, name, program, results, mesh, spec, *options):
    called = f"linalg.{name}"
    meshes.refuse_manual_axes(called)
    _check(arrays, name, program, results, options)
    layout = meshes.infer(called, arrays, mesh, spec)
    specs = _specs(layout, results, arrays)
    call = programs.Call(f"linalg_{name}", program, layout, arrays[0].shape, 0, "", specs, options)
    faster = on_one.is_possible if program.on_one else on_one.is_faster
    alone = not program.is_product(*options) and faster(layout, arrays[0].shape)
    run = on_one.runner(call, arrays) if alone else programs.runner(call, arrays)
    return (lambda *arrays: run(*arrays)[0]) if len(specs) == 1 else run


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program: a function of a call and of global arrays, the first of which is a matrix. The
    attributes of the call are the options of `plan`.

    Attributes:
        any_shape: whether it takes matrices that aren't square.
        with_b: whether its second array has right-hand sides, with as many rows as the matrix.
        by_library: whether a library computes it, on all devices.
        is_product: function of the options: whether the program only multiplies matrices. Then it
            also takes integers and needs no native code.
        compute_stacks: function of (platform, options, *stacks) with which one device computes a
            stack of matrices (`shares`); None if there is none.
        takes: function of the options: whether ``compute_stacks`` supports them.
        by: the `choice.Operation` whose library call ``compute_stacks`` makes; None if there are
            several such operations, or none.
        alone: for a platform, the largest order of a matrix that ``compute_stacks`` computes as a
            stack of one, on a mesh of one device or where one device computes for all.
        on_one: whether one of several CPU devices always computes for all, if one can.
        single: the indices of the results that stay float32 if the arrays are bfloat16 or float16
            (`halves`).
    """

    function: collections.abc.Callable
    any_shape: bool = False
    with_b: bool = False
    by_library: bool = False
    is_product: collections.abc.Callable = lambda *options: False
    compute_stacks: collections.abc.Callable | None = None
    takes: collections.abc.Callable = lambda *options: True
    by: choice.Operation | None = None
    alone: collections.abc.Mapping = dataclasses.field(default_factory=dict)
    on_one: bool = False
    single: tuple[int, ...] = ()

    def __call__(self, call, a, *others):
        """Returns the results. The processes join a rendezvous (`ffi.meet`) before any of XLA's
        collectives. With several processes this may take a copy of the matrix."""
        a, *others = ffi.meet_first(call.layout, a, *others)
        # Moving the matrix to the mesh may have added rows of padding.
        arrays = blocks.join_rows(a, call.layout, call.shape[0]), *others
        layout = call.layout
        alone = layout.mesh.size == 1 or layout.solo
        most = self.alone.get(layout.platform, 0) if alone else 0
        if max(call.shape) > most or not all(array.size for array in arrays):
            return self.function(call, *arrays)
        share = shares.Share(self, call.attributes, layout.platform, 1)
        run = ffi.over_ranks(layout, share, (P(),) * len(arrays), P())
        return run(*(blocks.replicate(array, layout) for array in arrays))

    def takes_stacks(self, options):
        """Returns whether a device can compute its share of a batch with these options."""
        return self.compute_stacks is not None and self.takes(*options)


def program(**fields) -> collections.abc.Callable[..., Any]:
    """Returns a decorator that makes a `Program` from a function."""
    return lambda function: Program(function, **fields)


def reads(read):
    """Returns the function that selects the part that is read, for `scaling.homogeneous`."""
    return {UPPER: scaling.upper, LOWER: scaling.lower}.get(read)


def upper(a, layout, read, largest=None):
    """Returns a matrix whose upper triangle the routine reads in place of the part ``read`` of A.

    With HERMITIAN the result is NaN unless A is Hermitian up to rounding.

    Args:
        largest: the largest magnitude of a scaled matrix, near 1.
    """
    if read in (UPPER, ANY):
        return a
    if read == LOWER:
        return adjoint(a, layout)
    return symmetry.nan_unless_hermitian(a, layout, largest, halves.rounding(read))


def adjoint(a, layout):
    """Returns the adjoint of a square matrix, sharded like it."""
    if _compat.COMPILES_EXCHANGES:
        return products.adjoint(a, layout)
    a = shardings.constrain(a, layout, P())
    # JAX 0.6.2 can't lower `conj` in a context of explicit axes.
    return (jax.lax.complex(a.real, -a.imag) if jnp.iscomplexobj(a) else a).T
