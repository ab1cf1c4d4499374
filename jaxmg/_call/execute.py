"""Runs a routine on global arrays: resolves the arguments, compiles the program once, runs it.

`run` is the entry point; the functions below it are in the order in which a call uses them.
`_transform` handles JAX's transformations, and calls this module.
"""

import dataclasses
import operator

import jax
from jax.sharding import PartitionSpec as P

from jaxmg._call import alignment, backends, blocks, by_one, checks, ffi, programs, results
from jaxmg._call.arguments import Arguments, local_name
from jaxmg._layouts import layouts, local_layouts, meshes


def run(routine, arrays, arguments):
    """Runs ``routine`` on global arrays, eagerly or in the caller's trace.

    Returns (`programs.Call`, results). The results are those that the arguments request: a tuple,
    or a single one.
    """
    if isinstance(arguments.mesh, layouts.Layout):
        call, compiled = resolve(routine, arrays, arguments)
        return call, compiled(*arrays)
    return _resolve_with_call(arrays, routine, *arguments)


@programs.cache_plans
def _resolve_with_call(arrays, routine, *arguments):
    """Returns the function that `run` runs for arrays like these."""
    call, compiled = resolve(routine, arrays, Arguments(*arguments))
    return lambda *arrays: (call, compiled(*arrays))


def resolve(routine, arrays, arguments):
    """Checks a call on global arrays. Returns its `programs.Call`, and a function that computes the
    results for such arrays."""
    tile = check(routine, arrays, arguments)
    layout = resolve_layout(routine, arrays, arguments)
    a, donate, options = arrays[0], arguments.donate, dict(arguments.options)
    select, wanted = selection(routine, arguments.outputs, options)
    if a.size == 0:
        call = make_call(routine, layout, a, tile=1)
        empty = [result.empty(*arrays, local=False) for result in routine.results]
        return call, lambda *arrays: select(empty)
    matrix = jax.ShapeDtypeStruct((blocks.height(a.shape, routine.square), a.shape[1]), a.dtype)
    backend = backends.resolve(routine.native, layout, arguments.backend, matrix, arguments.caller)
    attributes = resolve_attributes(routine, arguments, a.dtype, backend, layout)
    attributes = fit_precision(routine, attributes, layout, matrix, tile, donate)
    specs = tuple([result.spec(layout, *arrays) for result in routine.results])
    call = make_call(routine, layout, a, tile, backend, attributes, specs)
    if routine.extension:
        order = alignment.larger_order(routine, layout, backend, a, tile, donate)
        call = dataclasses.replace(call, order=order)

    def runner():
        return programs.runner(call, arrays, donate, wanted, routine.matrices)

    if not donate and by_one.is_faster(routine, layout, arrays, tile, backend):
        alone = by_one.layout_of_first(layout)
        attributes = resolve_attributes(routine, arguments, a.dtype, backend, alone)
        attributes = fit_precision(routine, attributes, alone, matrix, tile, donate)
        by_first = make_call(routine, alone, a, tile, backend, attributes, specs)
        compiled = by_one.runner(by_first, arrays, layout, specs, runner, wanted)
    else:
        compiled = runner()
    return call, lambda *arrays: select(compiled(*arrays))


def check(routine, arrays, arguments):
    """Raises if shapes or dtypes are invalid. Returns the tile width."""
    caller = arguments.caller
    if isinstance(arguments.mesh, layouts.Layout):  # in a program, whose caller has checked
        return checks.tile(caller, arguments.T_A)
    meshes.refuse_manual_axes(caller, local_name(routine))
    checks.operands(caller, routine, arrays, arguments.pad)
    return checks.tile(caller, arguments.T_A)


def resolve_layout(routine, arrays, arguments):
    """Returns the layout of the matrices of a call."""
    layout = meshes.infer(arguments.caller, arrays, arguments.mesh, arguments.spec)
    checks.padding(arguments.caller, arrays[0].shape[-2:], layout, arguments.pad, routine.square)
    return layout


def resolve_attributes(routine, arguments, dtype, backend, layout, check_b=False):
    """Returns the attributes of the native routine, from the options. Raises if one is invalid."""
    options, call = dict(arguments.options), (dtype, backend, layout.platform)
    attributes = {
        option.attribute: option.check(arguments.caller, options[option.name], *call)
        for option in routine.options
    }
    if len(routine.operands) > routine.matrices:
        attributes["check_b"] = check_b
    return attributes


def fit_precision(routine, attributes, layout, matrix, tile, donate):
    """Selects plain products if the caller requested no precision and a device lacks the memory for
    the workspace of the default one. Returns the attributes."""
    if attributes.get("products") != checks.DEFAULT:
        return attributes
    if not backends.lacks_room_for_parts(routine.native, layout, matrix, tile, donate):
        return attributes
    return attributes | {"products": checks.PRODUCTS["highest"]}


def make_call(routine, layout, a, tile, backend="", attributes=(), specs=()):
    """Returns the `programs.Call` for the caller's global matrix ``a``, or for its shape."""
    call = programs.Call(
        routine.name, _program, layout, a.shape, tile, backend, specs,
        tuple(dict(attributes).items()), routine=routine,
    )  # fmt: skip
    if not routine.factor or a.size == 0:
        return call
    dtype = dict(routine.factor.dtypes).get(str(a.dtype), a.dtype)
    # The tiles depend only on the height of the matrix that is factored: A, or A^T if the tiles
    # aren't in A's memory.
    in_place = routine.results[0].in_place
    m = blocks.height(a.shape, routine.square) if in_place else a.shape[1]
    sizes = backends.plan(routine.factor.native, layout, backend, dtype, (m, m), tile)
    return dataclasses.replace(call, tile=sizes["tile"], overflow=sizes["overflow_rows"])


def selection(routine, outputs, options):
    """Returns a function that selects the requested results from all of them, and for each result
    whether it is requested."""
    index = {result.name: i for i, result in enumerate(routine.results)}
    positions = [index.get(name, 0) for name in requested(routine, outputs, options)]
    wanted = tuple([i in positions for i in range(len(routine.results))])
    return operator.itemgetter(*positions), wanted


def requested(routine, outputs, options):
    """Returns the ``outputs`` that the options request."""
    wanted = {result.name: options.get(result.argument, True) for result in routine.results}
    return [name for name in outputs if wanted.get(name, True)]


def select_results(routine, arguments, makers):
    """Returns the requested results. ``makers`` has a function without arguments for each name."""
    names = requested(routine, arguments.outputs, dict(arguments.options))
    values = [makers[name]() for name in names]
    return values[0] if len(values) == 1 else tuple(values)


def _program(call, *arrays):
    """The program: computes all results of global arrays. Traced once for each `programs.Call`."""
    if call.order is None:
        return _over_ranks(call, *arrays)
    larger, extended = alignment.extend(call, arrays)
    return alignment.cut(call, arrays, _over_ranks(larger, *extended))


def _over_ranks(call, *arrays):
    """Lays the matrices out by rows, runs `run_on_rank` on all ranks, and assembles the results."""
    layout, routine = call.layout, call.routine
    count, m = routine.matrices, blocks.height(arrays[0].shape, routine.square)
    others = tuple([blocks.replicate(b, layout) for b in arrays[count:]])
    if layout.spec != layout.row_spec:  # XLA reshards them by collectives
        arrays = (*ffi.meet_first(layout, *arrays[:count]), *arrays[count:])

    def local(coordinates, *arrays):
        rows = [blocks.to_rows(matrix, layout.by_rows, m) for matrix in arrays[:count]]
        values = run_on_rank(call, coordinates, *rows, *arrays[count:])
        parts = zip(routine.results, values, strict=True)
        return tuple([result.part(value, layout, arrays[0]) for result, value in parts])

    in_specs = (*[layout.row_spec] * count, *[P()] * len(others))
    out_specs = tuple([layout.row_spec if x.differs else P() for x in routine.results])
    mapped = ffi.over_ranks(layout, local, in_specs, out_specs)
    matrices = [blocks.split_rows(matrix, layout) for matrix in arrays[:count]]
    values = zip(routine.results, mapped(*matrices, *map(results.columns, others)), strict=True)
    return tuple([result.whole(value, call, *others) for result, value in values])


def run_on_rank(call, coordinates, *operands):
    """Computes all results of a rank from its rows of matrices and right-hand sides as columns."""
    routine = call.routine
    if routine.kernel is not None:
        return routine.kernel(call, coordinates, *operands)
    return call_native(call, coordinates, *operands)


def call_native(call, coordinates, *operands, **sizes):
    """Computes all results of a rank by one call of the routine's native code. ``sizes`` are
    attributes in addition to n."""
    routine = call.routine
    return ffi.call(
        f"jaxmg_{routine.native}", call.layout, call.tile, call.backend, (coordinates, *operands),
        tuple([result.native(call, *operands) for result in routine.results]),
        in_place=routine.matrices, differing=sum([result.differs for result in routine.results]),
        n=operands[0].shape[1], **sizes, **dict(call.attributes),
    )  # fmt: skip


# Inside the caller's shard_map, where each rank makes the call with its block.


def resolve_local(routine, arrays, arguments):
    """Checks a call inside a shard_map. Returns the arguments with its `programs.Call`."""
    caller, (a, *others) = arguments.caller, arrays
    checks.block(caller, a, checks.ALL)
    tile = checks.tile(caller, arguments.T_A)
    layout = local_layouts.infer_local(
        caller, a, arguments.mesh, arguments.spec, arguments.pad, routine.square
    )
    for b in others[: routine.matrices - 1]:
        checks.second_matrix(caller, a, b, checks.ALL)
    matrix = jax.ShapeDtypeStruct(blocks.matrix_shape(a, layout, routine.square), a.dtype)
    backend = backends.resolve(routine.native, layout, arguments.backend, matrix, caller)
    sides = arrays[routine.matrices :]
    for b in sides:
        checks.right_hand_side(caller, matrix, b, checks.ALL)
    check_b = any([checks.same_on_ranks(caller, b, layout) for b in sides])
    attributes = resolve_attributes(routine, arguments, a.dtype, backend, layout, check_b)
    attributes = fit_precision(routine, attributes, layout, matrix, tile, donate=False)
    call = make_call(routine, layout, matrix, tile, backend, attributes)
    return arguments._replace(backend=backend, inside=call)


def local_operands(routine, arrays, call):
    """Returns a rank's rows of the matrices, and right-hand sides as columns."""
    count = routine.matrices
    m, _ = blocks.matrix_shape(arrays[0], call.layout, routine.square)
    rows = [blocks.to_rows(matrix, call.layout, m) for matrix in arrays[:count]]
    return *rows, *map(results.columns, arrays[count:])


def local_results(routine, arrays, arguments, values):
    """Returns this rank's results, given all results of the native code."""
    layout = arguments.inside.layout
    select, wanted = selection(routine, arguments.outputs, dict(arguments.options))
    return select([
        result.on_rank(value, layout, *arrays) if want else None
        for result, value, want in zip(routine.results, values, wanted, strict=True)
    ])  # fmt: skip


def local_empty(routine, arrays, arguments):
    """Returns the results for a matrix without rows."""
    select, _ = selection(routine, arguments.outputs, dict(arguments.options))
    return select([result.empty(*arrays, local=True) for result in routine.results])


def with_attributes(routine, arguments, dtype):
    """Returns the `programs.Call` of ``arguments`` inside a shard_map, with ``routine`` in place of
    its own routine and with the attributes for this one."""
    call = arguments.inside
    attributes = resolve_attributes(routine, arguments, dtype, call.backend, call.layout)
    return dataclasses.replace(call, routine=routine, attributes=tuple(attributes.items()))
