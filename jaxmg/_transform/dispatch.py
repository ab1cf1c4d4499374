"""Calls under JAX's transformations: handles batches and derivatives, and lets `execute` run the
calls that remain.

The public functions call `call` and `call_local`. A ``rule`` is a function of the `Arguments` that
returns a derivative rule for `derivatives.differentiable`. ``pack`` makes the public function's
result, given the `programs.Call` and the results. Both are part of a plan's key, so a public
function passes the same objects in each call.
"""

import functools
from typing import Any

from jaxmg import _compat
from jaxmg._call import checks, execute, programs
from jaxmg._call.arguments import Arguments
from jaxmg._layouts import layouts, meshes
from jaxmg._matrices import symmetry
from jaxmg._stacks import batching
from jaxmg._transform import batched_calls, derivatives


def call(routine, arrays, arguments, rule, check=False, pack=batched_calls.results_alone):
    """Returns the results of a routine on global arrays, eagerly or under jit.

    Args:
        check: whether to check that the matrices are Hermitian.
    """
    if _compat.in_eager_batch(arrays) and not check and not arguments.donate:
        return _call_in_batch(routine, arrays, arguments, pack)
    if isinstance(arguments.mesh, layouts.Layout):  # in a program, whose plan is cached already
        return transform(routine, arrays, arguments, rule, pack)
    return _plan(arrays, routine, rule, check, pack, *arguments)


def _call_in_batch(routine, arrays, arguments, pack):
    """As `call`, under ``jax.vmap`` only, for arrays with values. Caches the plan of the batch."""
    one = batched_calls.Execution(routine, arguments, pack)

    def run(size, marks, values):
        slot = programs.slot_of(values, _call_in_batch, one, size, marks)
        if not slot:
            execute.check(routine, arrays, arguments)
            slot.append(one.plan(False, size, marks, *values))
        return slot[0](*values)

    return batching.below(run, arrays)


@programs.cache_plans
def _plan(arrays, routine, rule, check, pack, *values):
    """Returns the function of arrays like these that `call` runs, for `Arguments` of these values.

    The plan is cached, so that a later eager call executes little of this package's Python. A solve
    evicts Python's code from the processor's caches, and makes it four times as slow.
    """
    arguments = Arguments(*values)
    caller = arguments.caller
    if batching.is_batch(arrays[0]):
        each = arguments._replace(donate=False)
        _check_batch(routine, arrays, caller)
        one = functools.partial(_call_one, routine, each, rule, check, pack)
        names, square = routine.names, routine.square
        return batching.over_leading(caller, names, one, arrays, arguments.pad, square=square)
    if check and routine.triangle:
        execute.check(routine, arrays, arguments)
    elif not arguments.donate and not layouts.traced(arrays):
        return _resolve(routine, arrays, arguments, pack)

    def run(*arrays):
        if arguments.donate and len(arrays) > 1:
            checks.separate(caller, *arrays)
        if check and routine.triangle:
            arrays = _check_hermitian(routine, arrays, arguments)
        return transform(routine, arrays, arguments, rule, pack)

    return run


def _call_one(routine, arguments, rule, check, pack, *arrays):
    return call(routine, arrays, arguments, rule, check, pack)


def _check_batch(routine, arrays, caller):
    """Checks the shapes of a batch before `jax.vmap` hides its leading dimensions from errors."""
    a, *others = arrays
    for name, array in zip(routine.names, arrays, strict=False):
        checks.array(caller, name, array, checks.ALL)
    for b in others[: routine.matrices - 1]:
        checks.batch_of_second_matrices(caller, a, b)
    for b in others[routine.matrices - 1 :]:
        checks.batch_of_right_hand_sides(caller, routine.names, (a, b), routine.square)


def _resolve(routine, arrays, arguments, pack):
    """Returns the function of arrays like these, which aren't traced, that returns packed
    results."""
    call, run = execute.resolve(routine, arrays, arguments)
    if pack is batched_calls.results_alone:
        return run
    return lambda *arrays: pack(call, run(*arrays))


def call_local(routine, arrays, arguments, rule):
    """Returns the results for this rank's block, inside a shard_map. Outside of one, returns the
    results of `transform`, with a status of shape (1,), as in JAXMg 1.4.1."""
    if not meshes.manual_axes():
        *results, status = transform(routine, arrays, arguments, rule)
        with _compat.entered_by(status):
            return *results, status.reshape(1)
    arguments = execute.resolve_local(routine, arrays, arguments)
    if arrays[0].size == 0:
        return execute.local_empty(routine, arrays, arguments)
    return derivatives.differentiable(
        lambda *arrays: _run_local(routine, arrays, arguments), rule(arguments), *arrays
    )


def transform(routine, arrays, arguments, rule, pack=batched_calls.results_alone) -> Any:
    """Returns the results for global arrays without leading dimensions, with a derivative rule."""
    if not layouts.traced(arrays):
        return pack(*execute.run(routine, arrays, arguments))
    execute.check(routine, arrays, arguments)
    return derivatives.differentiable(
        lambda *arrays: batch(routine, arrays, arguments, pack), rule(arguments), *arrays
    )


def batch(routine, arrays, arguments, pack=batched_calls.results_alone):
    """Returns the results for global arrays, with a batching rule but without a derivative rule."""
    return batching.batchable(batched_calls.Execution(routine, arguments, pack), *arrays)


def batch_rows(call, *operands):
    """Returns all results for a rank's rows of the matrices, and right-hand sides as columns,
    inside the caller's shard_map."""
    with _compat.default_promotion():
        return batching.batchable(batched_calls.LocalExecution(call), *operands)


def run_by_rows(routine, arrays, arguments):
    """Returns the requested results for a rank's rows of the matrices, inside a shard_map. Matrices
    among the results are rows, too."""
    call = execute.with_attributes(routine, arguments, arrays[0].dtype)
    select, _ = execute.selection(routine, arguments.outputs, dict(arguments.options))
    return select(batch_rows(call, *arrays))


@_compat.default_promotion()
def _run_local(routine, arrays, arguments):
    """Returns a rank's results for its blocks, inside a shard_map."""
    operands = execute.local_operands(routine, arrays, arguments.inside)
    values = batch_rows(arguments.inside, *operands)
    return execute.local_results(routine, arrays, arguments, values)


def _check_hermitian(routine, arrays, arguments):
    """Returns the arrays. If a matrix isn't Hermitian, raises; in a trace, replaces it with NaN."""
    count = routine.matrices
    matrices = (
        symmetry.check(arguments.caller, name, matrix, arrays, arguments, routine.triangle)
        for name, matrix in zip(routine.names, arrays[:count], strict=False)
    )
    return (*matrices, *arrays[count:])
