"""Applies a function to each matrix of a pytree, at the matrices' homes (homes.py).

All devices run one program. Each device packs its parts of all matrices by home, and one exchange
brings them there. Each device computes its own matrices, one stack for each shape, and one exchange
brings the results to where the leaves lie. Leaves that travel together (`homes.Family`) share one
buffer, so that the number of exchanges isn't the number of leaves:

    parts of all leaves  --pack by home-->  (S, numbers)  --all_to_all over S-->  (S, numbers)
    --stacks--> f --pack by part-->  (S, numbers)  --all_to_all over S-->  (S, numbers)
    --all_gather over O-->  (O, S, numbers)  --cut-->  parts of all results

S are the axes over which the matrices are sharded, O the axes along which they are replicated.
Along O each device takes the matrices that are at home there, without an exchange, and gathers all
results. Leaves whose matrices all stay in place, as on one device, are stacked directly.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import ffi
from jaxmg._layouts import layouts, shardings
from jaxmg._stacks import choice
from jaxmg._stacks import pieces as native_pieces
from jaxmg._stacks.parts import in_parts
from jaxmg._trees import homes


def run(function, mesh, leaves, cost, arrays):
    """Applies ``function`` to each matrix of the arrays, whose placement on ``mesh`` the ``leaves``
    describe. Returns a list with the results for each array, which have the leaf's leading
    dimensions. If an array's dtype isn't its leaf's, the array is rounded to the leaf's dtype, and
    results of that dtype are converted to the array's."""
    with _compat.entered(mesh):
        return _run(function, mesh, leaves, cost, *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _run(function, mesh, leaves, cost, *arrays):
    program = Program(function, mesh, leaves, homes.deal(leaves, tuple(mesh.shape.items()), cost))
    layout = program.layout
    in_specs = tuple(leaf.spec for leaf in leaves)
    dtypes = [array.dtype for array in arrays]
    if layout.explicit:
        each = zip(arrays, in_specs, strict=True)
        arrays = tuple(shardings.constrain(x, layout, spec) for x, spec in each)
    results = ffi.over_ranks(layout, program, in_specs, program.out_specs)(*arrays)
    return [
        jax.tree.unflatten(
            program.trees[leaf.kind],
            [value.astype(dtype) if value.dtype == leaf.dtype else value for value in values],
        )
        for leaf, values, dtype in zip(leaves, results, dtypes, strict=True)
    ]


def _rounded(array, dtype):
    """Converts the array to this dtype. Finite numbers outside of its range become the largest
    ones."""
    if array.dtype == dtype:
        return array
    largest = float(jnp.finfo(dtype).max)
    excess = jnp.where(jnp.isfinite(array), array - jnp.clip(array, -largest, largest), 0)
    return (array - jax.lax.stop_gradient(excess)).astype(dtype)


class _Result:
    """One result of the function for matrices of a kind.

    Attributes:
        axes: the axes over which each dimension is sharded. A matrix is sharded like the leaf's own
            matrices, where the axes divide its dimensions. Other results aren't sharded.
    """

    def __init__(self, value, kind, mesh):
        self.shape, self.dtype = value.shape, value.dtype
        self.of_matrix = kind[2]
        self.axes = ((),) * len(self.shape)
        if len(self.shape) == 2:
            self.axes = tuple(
                axes if size % layouts.axes_size(mesh, axes) == 0 else ()
                for size, axes in zip(self.shape, kind[2], strict=True)
            )
        self.counts = tuple(layouts.axes_size(mesh, axes) for axes in self.axes)
        self.parts = tuple(layouts.axes_size(mesh, axes) for axes in kind[2])
        self.block = tuple(n // k for n, k in zip(self.shape, self.counts, strict=True))

    def spec(self, leaf):
        """Returns the spec of the result for a leaf."""
        if len(self.shape) != 2:
            return P(*leaf.spec[:-2], *(None for _ in self.shape))
        kept = (axes == of for axes, of in zip(self.axes, self.of_matrix, strict=True))
        last = (e if keep else None for e, keep in zip(leaf.spec[-2:], kept, strict=True))
        return P(*leaf.spec[:-2], *last)

    def pack(self, stack):
        """Returns (parts of a matrix, numbers): the numbers of a stack for the device of each
        part."""
        count, parts = len(stack), math.prod(self.parts)
        if len(self.shape) == 2:
            stack = _split(stack, self.counts, self.block)
            stack = jnp.broadcast_to(stack, (*self.parts, *stack.shape[2:]))
        else:
            stack = jnp.broadcast_to(stack, (parts, *stack.shape))
        return stack.reshape(parts, count * math.prod(self.block))


def _split(stack, counts, block):
    """Converts (count, m, n) to (rows of parts, columns of parts, count, m of a part, n of a
    part)."""
    stack = stack.reshape(len(stack), counts[0], block[0], counts[1], block[1])
    return stack.transpose(1, 3, 0, 2, 4)


def _join(parts, count, counts, block):
    """Undoes `_split`: returns the matrices that have these parts."""
    parts = parts.reshape(*counts, count, *block).transpose(2, 0, 3, 1, 4)
    return parts.reshape(count, counts[0] * block[0], counts[1] * block[1])


class Program:
    """The program that each device runs, inside a shard_map."""

    def __init__(self, function, mesh, leaves, deal):
        self.function, self.mesh, self.leaves, self.deal = function, mesh, leaves, deal
        names = mesh.axis_names
        self.layout = layouts.Layout(mesh, names, (), P(names, None))
        self.trees, self.results = {}, {}
        for kind in {leaf.kind: None for leaf in leaves}:
            shape_of = getattr(function, "result", functools.partial(jax.eval_shape, function))
            value = shape_of(jax.ShapeDtypeStruct(kind[0], kind[1]))
            values, self.trees[kind] = jax.tree.flatten(value)
            self.results[kind] = [_Result(value, kind, mesh) for value in values]
        # JAX's LAPACK kernels for batches wait for other threads of XLA's pool, and those of
        # several devices at a time lock up (seen with jaxlib 0.10.2).
        self.in_turn = self.layout.platform == "cpu" and mesh.size > 1

    @property
    def out_specs(self):
        return tuple(
            [result.spec(leaf) for result in self.results[leaf.kind]] for leaf in self.leaves
        )

    @property
    def bytes_sent(self):
        """Bytes that a device sends in one call, with padding: (of the leaves, of the results)."""
        sent = returned = 0
        for family in self.deal.families:
            copies, parts = family.shape
            width = max(self._width(runs) for runs in family.homes)
            sent += (parts - 1) * width * self.leaves[family.leaves[0]].dtype.itemsize
            for dtype, width in self._result_widths(family).items():
                returned += (parts - 1 + parts * (copies - 1)) * width * dtype.itemsize
        return sent, returned

    def __call__(self, coordinates, *blocks):
        rank = coordinates.reshape(-1)[0]
        stacks = [x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) for x in blocks]
        received = [self._bring(family, rank, stacks) for family in self.deal.families]
        computed = self._compute(rank, received)
        results = [[None] * len(self.results[leaf.kind]) for leaf in self.leaves]
        for family, buffers in zip(self.deal.families, computed, strict=True):
            dtypes = {blocks[i].dtype for i in family.leaves}
            self._take_back(family, buffers, results, dtypes.pop() if len(dtypes) == 1 else None)
        return tuple(results)

    def _bring(self, family, rank, blocks):
        """Returns the parts of the matrices that are at home here, (parts of a matrix, numbers). If
        the family stays in place, returns a stack for each run."""
        if family.stays:
            return [self._stack(run, blocks, run.kind[1]) for run in family.homes[0]]
        width = max(self._width(runs) for runs in family.homes)

        def pack(row):
            rows = family.homes[row * family.shape[1] : (row + 1) * family.shape[1]]
            return jnp.stack([_fill(self._parts(runs, blocks), width, dtype) for runs in rows])

        dtype = self.leaves[family.leaves[0]].dtype
        row = jnp.asarray(np.array(family.places) // family.shape[1])[rank]
        packed = _switch(row, [functools.partial(pack, i) for i in range(family.shape[0])])
        return self._exchange(family, packed)

    def _stack(self, run, blocks, dtype):
        """Returns the stack of the matrices of a run, which are all here. The concatenation has one
        operand for each leaf. XLA is kept from fusing it with each sum over the stack, and from
        transposing each leaf for a transposition that follows: both would take long to compile."""
        if not math.prod(run.kind[0]):
            return jnp.zeros((run.count, *run.kind[0]), dtype)
        stack = _joined([_section(blocks[i], start, stop) for i, start, stop in run.pieces], dtype)
        if len(run.pieces) == 1:
            return stack
        if choice.multiplies_by_plugin(self.layout.platform):
            return native_pieces.split(stack, [len(stack)])[0]
        return jax.lax.optimization_barrier(stack)

    def _exchange(self, family, packed):
        """Sends a row to each place along the sharded axes. Returns the rows from these places."""
        if family.shape[1] == 1:
            return packed
        return jax.lax.all_to_all(packed, family.sharded, 0, 0, tiled=True)

    def _width(self, runs):
        """Number of elements of these runs on one device."""
        return sum(run.count * math.prod(self._block(run.kind)) for run in runs)

    def _block(self, kind):
        shape, _, axes = kind
        return tuple(n // layouts.axes_size(self.mesh, a) for n, a in zip(shape, axes, strict=True))

    def _parts(self, runs, blocks):
        """Returns this device's parts of the matrices of the runs."""
        pieces = [piece for run in runs for piece in run.pieces]
        return [blocks[i][start:stop].reshape(-1) for i, start, stop in pieces if blocks[i].size]

    def _compute(self, rank, received):
        """Computes the results for the matrices that are at home here: for each family a dict from
        dtypes to (parts of a matrix, numbers). Ranks that compute the same shapes share a branch of
        the program."""
        works = [self.deal.runs(i) for i in range(self.mesh.size)]
        distinct = list(dict.fromkeys(works))
        branch = jnp.asarray(np.array([distinct.index(work) for work in works]))[rank]
        branches = [functools.partial(self._compute_these, work) for work in distinct]
        return _switch(branch, branches, received)

    def _compute_these(self, work, received):
        """As `_compute`, for ``work``: (kind, number of matrices) pairs for each family."""
        stacks: dict = {}
        slots: dict = {}
        for i, (runs, buffer) in enumerate(zip(work, received, strict=True)):
            start = 0
            for j, (kind, count) in enumerate(runs):
                if self.deal.families[i].stays:
                    stack = buffer[j]
                else:
                    stack, start = self._unpack(buffer, start, kind, count)
                stacks.setdefault(kind[:2], []).append(stack)
                slots.setdefault(kind[:2], []).append((i, kind))
        packed: list[dict] = [{} for _ in work]
        for key in sorted(stacks, key=repr):
            values = jax.tree.leaves(self._apply(_concatenate(stacks[key])))
            start = 0
            for (i, kind), stack in zip(slots[key], stacks[key], strict=True):
                stop = start + len(stack)
                packed[i][kind] = [value[start:stop] for value in values]
                start = stop
        return [self._pack(*each) for each in zip(self.deal.families, work, packed, strict=True)]

    def _unpack(self, buffer, start, kind, count):
        """Returns (a stack of matrices, the position where the next ones start)."""
        block = self._block(kind)
        if not math.prod(block):
            return jnp.zeros((count, *kind[0]), kind[1]), start
        stop = start + count * math.prod(block)
        counts = [layouts.axes_size(self.mesh, axes) for axes in kind[2]]
        return _join(buffer[:, start:stop], count, counts, block), stop

    def _apply(self, stack):
        """Applies the function to each matrix of a stack."""
        if not self.in_turn:
            compute_stack = getattr(self.function, "compute_stack", None)
            if compute_stack is None:
                return in_parts(jax.vmap(self.function), stack)
            return in_parts(functools.partial(compute_stack, self.layout.platform), stack)
        if len(stack) == 1:
            return jax.tree.map(lambda x: jnp.asarray(x)[None], self.function(stack[0]))
        return jax.lax.map(self.function, stack)

    def _pack(self, family, runs, values):
        """Packs results by kind into a buffer for each dtype. If the family stays in place, returns
        the results of each run instead."""
        if family.stays:
            return [values[kind] for kind, _ in runs]
        buffers: dict = {}
        for dtype, width in self._result_widths(family).items():
            parts = [
                result.pack(value)
                for kind, _ in runs
                for result, value in zip(self.results[kind], values[kind], strict=True)
                if result.dtype == dtype and value.size
            ]
            rows = sum(part.shape[1] for part in parts)
            empty = jnp.zeros((family.shape[1], width - rows), dtype)
            buffers[str(dtype)] = jnp.concatenate([*parts, empty], axis=1)
        return buffers

    def _result_widths(self, family):
        """Returns for each dtype the largest number of elements that a home sends to a device."""
        widths: dict = {}
        for runs in family.homes:
            here: dict = {}
            for run in runs:
                for result in self.results[run.kind]:
                    size = run.count * math.prod(result.block)
                    here[result.dtype] = here.get(result.dtype, 0) + size
            for dtype, size in here.items():
                widths[dtype] = max(size, widths.get(dtype, 0))
        return widths

    def _take_back(self, family, buffers, results, dtype_of_arrays):
        """Sets this device's parts of the results of a family's leaves. If the arrays share a dtype
        and the plugin multiplies stacks, results in the leaves' dtype are converted to the arrays'
        dtype here, all at once instead of leaf by leaf. Without the plugin, XLA for CPUs would then
        skip the rounding to the leaves' dtype (findings/jax_bfloat16_digits_under_jit.sh)."""
        pieces: dict = {}
        at_once = dtype_of_arrays and choice.multiplies_by_plugin(self.layout.platform)

        def converted(x, dtype):
            return x.astype(dtype_of_arrays) if at_once and x.dtype == dtype else x

        if family.stays:
            for run, values in zip(family.homes[0], buffers, strict=True):
                for j, value in enumerate(values):
                    for i, piece in self._unstack(run, converted(value, run.kind[1])):
                        pieces.setdefault((i, j), []).append(piece)
            self._set(family, pieces, results)
            return
        for dtype in self._result_widths(family):
            buffer = self._exchange(family, buffers[str(dtype)])
            if family.shape[0] > 1:
                buffer = jax.lax.all_gather(buffer, family.others)
            rows = buffer.reshape(len(family.homes), -1)
            rows = converted(rows, self.leaves[family.leaves[0]].dtype)
            for row, runs in zip(rows, family.homes, strict=True):
                self._cut(row, dtype, runs, pieces)
        self._set(family, pieces, results)

    def _unstack(self, run, value):
        """Returns (leaf, its part) pairs of a run's results, which are split once for all
        leaves."""
        sizes = [last - first for _, first, last in run.pieces]
        return zip((i for i, _, _ in run.pieces), self._split(value, sizes), strict=True)

    def _split(self, x, sizes):
        """Returns pieces of ``x`` of these sizes, one after the other along its first dimension.
        The rest of ``x`` is padding."""
        if [*sizes] == [len(x)]:
            return [x]
        if x.size and choice.multiplies_by_plugin(self.layout.platform):
            rest = len(x) - sum(sizes)
            return native_pieces.split(x, [*sizes, rest] if rest else sizes)[: len(sizes)]
        x = jax.lax.optimization_barrier(x)
        return [
            _section(x, end - size, end)
            for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)
        ]

    def _set(self, family, pieces, results):
        """Sets the results of a family's leaves, each of which has a list of parts."""
        for i in family.leaves:
            leaf = self.leaves[i]
            for j, result in enumerate(self.results[leaf.kind]):
                shape = (*leaf.block[:-2], *result.block)
                found = pieces.get((i, j), [jnp.zeros((0, *result.block), result.dtype)])
                results[i][j] = _concatenate(found).reshape(shape)

    def _cut(self, row, dtype, runs, pieces):
        """Adds the parts that a home has sent, for each leaf and result, to the lists in
        ``pieces``."""
        cuts = [
            ((i, j), (last - first, *result.block))
            for run in runs
            for j, result in enumerate(self.results[run.kind])
            if result.dtype == dtype
            for i, first, last in run.pieces
        ]
        # XLA of JAX 0.11.2 crashes if it cuts out a part without elements.
        sizes = [math.prod(shape) for _, shape in cuts]
        parts = iter(self._split(row, [size for size in sizes if size]))
        for (key, shape), size in zip(cuts, sizes, strict=True):
            piece = next(parts).reshape(shape) if size else jnp.zeros(shape, dtype)
            pieces.setdefault(key, []).append(piece)


def _section(stack, start, stop):
    """Returns stack[start:stop]. XLA of JAX 0.11.2 crashes if it cuts out a part without
    elements."""
    if (start, stop) == (0, len(stack)):
        return stack
    if not math.prod(stack.shape[1:]):
        return jnp.zeros((stop - start, *stack.shape[1:]), stack.dtype)
    return jax.lax.slice_in_dim(stack, start, stop)


def _fill(parts, width, dtype):
    """Returns the parts one after the other, and zeros up to this width."""
    size = sum(part.size for part in parts)
    of = parts[0].dtype if parts else dtype
    return _joined([*parts, jnp.zeros(width - size, of)], dtype)


def _joined(parts, dtype):
    """Returns the parts one after the other. Rounds them to this dtype: together if they have one
    dtype, else each."""
    if len({part.dtype for part in parts}) > 1:
        parts = [_rounded(part, dtype) for part in parts]
    return _rounded(_concatenate(parts), dtype)


def _concatenate(stacks):
    return stacks[0] if len(stacks) == 1 else jnp.concatenate(stacks)


def _switch(index, branches, *operands):
    """Runs the branch of this index. A single branch runs without a switch."""
    if len(branches) == 1:
        return branches[0](*operands)
    return jax.lax.switch(index, branches, *operands)
