"""How the functions of `jaxmg.linalg` run: each is a program, a composition of routines and of
products, compiled as a whole. A file jax_*.py has functions and their programs."""

import collections.abc
import dataclasses
import functools
import inspect
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks, ffi, layouts, programs, symmetry
from jaxmg._call.arguments import matrix_spec
from jaxmg._call.layouts import WHOLE
from jaxmg._factors import scaling
from jaxmg._routines import shares
from jaxmg._transform import batching, products, whole

# Besides the routines' dtypes those of which JAX has powers of the same dtype: products need no
# native code.
_INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))

# Which part of a matrix is read, or what it has to be.
UPPER, LOWER, HERMITIAN, ANY = "upper", "lower", "hermitian", "any"
# SciPy's names of what a matrix is known to be; "": nothing.
ASSUMED = {
    "pos": "pos", "positive definite": "pos", "her": "her", "hermitian": "her", "sym": "sym",
    "symmetric": "sym", "gen": "gen", "general": "gen", None: "",
}  # fmt: skip


def triangle(lower):
    return LOWER if lower else UPPER


def plan(arrays, name, program, results, mesh, spec, *options, pack=None):
    """The function of arrays such as these that gives the results of ``program(call, *arrays)``,
    compiled as a program of its own or traced; a single one comes without a list.

    Args:
        arrays: the matrix, right-hand sides, and integers that go with them.
        results: of each whether it is a "matrix" like the first array, "like b" or "small", which
            every device has; or the shape of a matrix that lies as one of that shape would. Or a
            function of the layout that gives all that.
        options: what the program finds as the call's attributes.
        pack: function of the results that makes what the public function returns of them.
    """
    spec = matrix_spec(f"linalg.{name}", spec, None)
    for argument, array in zip(_names(name), arrays, strict=False):
        checks.is_an_array(f"linalg.{name}", argument, array)
        checks.usable(f"linalg.{name}", argument, array)
    promoted = arrays
    if not program.is_product(*options):
        promoted = (*promote(name, *arrays[:2]), *arrays[2:])
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
    # Under vmap both batches become one.
    return inspect.unwrap(batch) if _compat.batched_here(arrays) else batch


def _plan_one(arrays, name, program, results, mesh, spec, *options):
    """`plan` of one matrix, or of what `jax.vmap` shows as one."""
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
    """A function of arrays that are traced: what JAX differentiates or batches eagerly it would
    else compile operation by operation."""
    return jax.jit(lambda *arrays: _plan_program(arrays, *call)(*arrays))


def seen_below(name, arrays, mesh, spec, may_be_whole=True):
    """The mesh and the spec of arrays that are being differentiated or batched; `WHOLE` in the
    place of the spec if each device is to have whole matrices."""
    called = f"linalg.{name}"
    layouts.refuse_manual_axes(called)
    layout = layouts.infer(called, arrays, mesh, spec)
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
    """``found``, the results of a batch, where ``lie`` says, a `whole.Places` or None."""
    if lie is None:
        return found
    kinds: Any = results
    if callable(kinds):
        kinds = kinds(layouts.infer(f"linalg.{name}", arrays, mesh, spec))
    return lie.put(kinds, found)


def _takes_b(program, results):
    """Whether a program takes right-hand sides."""
    like_b = not callable(results) and "like b" in results
    return like_b or program.with_b


def _dtypes(program, options):
    """The dtypes of the arrays that a program takes."""
    return checks.DTYPES + (_INTEGERS if program.is_product(*options) else ())


def matrix_name(name):
    """The argument of the function of this name that is the matrix."""
    return layouts.matrix_name(f"linalg.{name}")


def _names(name):
    """The arguments of a function that are arrays, for its errors."""
    return matrix_name(name), "c" if name == "qr_multiply" else "b"


def promote(name, *arrays, names=None):
    """The arrays of a function of this name, as JAX promotes them to one inexact dtype."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1 and jnp.issubdtype(arrays[0].dtype, jnp.inexact):
        return arrays
    scalars = [
        jax.ShapeDtypeStruct((), array.dtype, weak_type=getattr(array, "weak_type", False))
        for array in arrays
    ]
    # Functions of one and of two arrays that promote them so.
    try:
        dtype = jax.eval_shape(jnp.exp if len(scalars) == 1 else jnp.divide, *scalars).dtype
    except (TypeError, ValueError):
        checks.promotable(f"linalg.{name}", names or _names(name), arrays)
        raise
    return tuple(_convert(array, dtype) for array in arrays)


def _convert(array, dtype):
    wide = str(array.dtype) in ("float64", "complex128")
    if array.dtype == dtype or (wide and not _compat.x64_enabled()):  # which is refused later
        return array
    return array.astype(dtype)


def over_leading(name, function, arrays, dtypes=checks.DTYPES, square=True, with_b=False):
    """``function`` of each matrix of a batch, and of right-hand sides, whose leading dimensions
    broadcast against each other's as in NumPy."""
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
    # An array without a dimension, or with one of 1 where the other has more, is the same for all.
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
    """The mesh and the spec for each matrix of a batch."""
    on = layouts.mesh_of(f"linalg.{name}", (a,)) if mesh is None else mesh
    sharding = layouts.sharding_below(a)
    if spec is not None or sharding is None or sharding.mesh != on:
        return on, spec
    each = P(*sharding.spec[a.ndim - 2 :])
    return on, each if any(each) else None


@dataclasses.dataclass(frozen=True)
class _Shared(batching.Batchable):
    """`run` of a program that a device has a function of stacks for (`shares`), or of whole
    matrices. In a batch each device computes its share of the matrices, if one fits on it."""

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
        ones = [batching.of_one(x, mark) for x, mark in zip(arrays, marks, strict=True)]
        if marks[0] and self.program.takes_stacks(self.options):
            layout = layouts.infer(f"linalg.{self.name}", ones, self.mesh, self.spec)
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
    """Raises where a program can't take the arrays."""
    called, a = f"linalg.{name}", arrays[0]
    square = not program.any_shape
    checks.matrix(
        called, matrix_name(name), a, True, checks.ALL, _dtypes(program, options), square=square
    )
    if _takes_b(program, results):
        checks.right_hand_side(called, a, arrays[1], checks.ALL, square=square)


def _specs(layout, results, arrays):
    """The spec of each result."""
    kinds: Any = results(layout) if callable(results) else results
    specs = {
        "matrix": lambda: layout.result_spec(arrays[0].shape),
        "like b": lambda: layouts.spec_of(arrays[1], layout),
        "small": P,
    }
    return tuple(
        layout.result_spec(result) if isinstance(result, tuple) else specs[result]()
        for result in kinds
    )


def _plan_program(arrays, name, program, results, mesh, spec, *options):
    called = f"linalg.{name}"
    layouts.refuse_manual_axes(called)
    _check(arrays, name, program, results, options)
    layout = layouts.infer(called, arrays, mesh, spec)
    specs = _specs(layout, results, arrays)
    call = programs.Call(f"linalg_{name}", program, layout, arrays[0].shape, 0, "", specs, options)
    run = programs.runner(call, arrays)
    return (lambda *arrays: run(*arrays)[0]) if len(specs) == 1 else run


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program: of a call, whose first attribute says what to read of its matrix, and of global
    arrays, of which the first is a matrix.

    Attributes:
        any_shape: whether it takes matrices that aren't square.
        with_b: whether it takes right-hand sides with as many rows.
        by_library: whether it leaves the computation to a library, which works on all devices.
        is_product: whether, by its options, it multiplies matrices and does nothing else, for which
            it takes integers too and needs no native code.
        of_stacks: what a device does with a stack of matrices, of (platform, options, *stacks)
            (`shares`); None: there is no such function.
        takes: whether ``of_stacks`` has these options.
        by: of `choice.TABLE`, the only one of its functions by which ``of_stacks`` calls a library.
    """

    function: collections.abc.Callable
    any_shape: bool = False
    with_b: bool = False
    by_library: bool = False
    is_product: collections.abc.Callable = lambda *options: False
    of_stacks: collections.abc.Callable | None = None
    takes: collections.abc.Callable = lambda *options: True
    by: str = ""

    def __call__(self, call, a, *others):
        """The results. Processes meet (`ffi.meet`) before any collective of XLA's, which may cost a
        copy of the matrix where there are several."""
        (a,) = ffi.meet_first(call.layout, a)
        # On its way to the mesh a matrix may have got rows of padding.
        return self.function(call, blocks.join_rows(a, call.layout, call.shape[0]), *others)

    def takes_stacks(self, options):
        """Whether a device computes its share of a batch with these options by itself."""
        return self.of_stacks is not None and self.takes(*options)


def program(**fields) -> collections.abc.Callable[..., Any]:
    """Makes the `Program` of a function."""
    return lambda function: Program(function, **fields)


def reads(read):
    """What of a matrix is read, for `scaling.homogeneous`."""
    return None if read == HERMITIAN else scaling.lower if read == LOWER else scaling.upper


def upper(a, layout, read, largest=None):
    """A matrix of which the upper triangle is what the routine has to read.

    Args:
        largest: the largest magnitude of a scaled matrix, near 1.
    """
    if read == HERMITIAN:
        return symmetry.nan_unless_hermitian(a, layout, largest)
    return adjoint(a, layout) if read == LOWER else a


def adjoint(a, layout):
    """The adjoint of a square matrix, laid out as it is."""
    if _compat.COMPILES_EXCHANGES:
        return products.adjoint(a, layout)
    a = layouts.constrain(a, layout, P())
    # JAX 0.6.2 can't lower `conj` in a context of explicit axes.
    return (jax.lax.complex(a.real, -a.imag) if jnp.iscomplexobj(a) else a).T
