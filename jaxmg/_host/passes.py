"""One pass over a matrix with many more rows than columns that stays in host memory, or that a
function makes: `choose` decides whether a call takes it, and `small_problem` returns R and Q^H b
of all rows.

Chunks of rows go to the devices, each to one. A native call computes R and Q^H b of a chunk below
the R so far, while the device's next chunk is loaded. Chunks from memory that isn't pinned are
copied to one of two places in pinned memory first, by all cores, while the devices compute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import checks, ffi
from jaxmg._host import (
    agreement,
    chunks,
    driver,
    matrices,
    plans,
    pool,
    requests,
    rows,
    tiles,
    whole_calls,
)
from jaxmg._layouts import layouts, meshes, places
from jaxmg._plugin import plugins
from jaxmg._processes import rendezvous

# The memory that a call in core needs, as a multiple of A's.
_IN_CORE = 3


@dataclasses.dataclass(frozen=True)
class Pass:
    """A call that takes one pass, with valid arguments.

    Attributes:
        caller: the public function.
        a, b: the arguments; b is None for QR alone, else a NumPy array (m, nrhs).
        cut: how A is cut into chunks.
        mesh: the caller's mesh.
    """

    caller: str
    a: typing.Any
    b: np.ndarray | None
    cut: chunks.Cut
    mesh: typing.Any


class SmallProblem(typing.NamedTuple):
    """The problem that has the solution of all rows: ``r`` (ranks n, n) and ``c`` (ranks n, nrhs),
    by the devices of ``layout``, are R of A 2^-e and Q^H b of b 2^-f, and ``squares`` (nrhs,) what
    the residuals have besides those of this problem."""

    r: jax.Array
    c: jax.Array
    squares: jax.Array
    e: jax.Array
    f: jax.Array
    layout: layouts.Layout


def choose(caller, a, b, mesh, spec, memory, residuals=False):
    """Returns the `Pass` of a call; None if the ordinary call is to go on.

    Args:
        b: None for QR alone.
        residuals: whether the call returns residuals.
    """
    made = isinstance(a, tiles.Tiles)
    if memory is None and not made and not _may_leave(a, b):
        return None
    if memory is not None:
        memory = pool.positive(caller, "memory", memory)
        requests.require_host(caller, a, "(m, n)")
    if made or memory is not None:
        meshes.refuse_manual_axes(caller)
        matrices.require_values(caller, (a, b))
    elif not _compat.trace_state_clean():
        return None
    if made:
        checks.double_precision(caller, "a", a)
    else:
        checks.matrix(caller, "a", a, True, checks.ALL, square=False)
    m, n = a.shape
    if b is not None:
        checks.right_hand_side(caller, jax.ShapeDtypeStruct(a.shape, a.dtype), b, square=False)
        if not b.size:  # products of 0 columns crash XLA
            b = np.zeros(m, b.dtype)
    if m < max(n, 1) or n == 0:
        if made:
            raise ValueError(
                f"{caller}: Tiles must have columns, and at least as many rows; they have shape "
                f"{a.shape}"
            )
        return None
    stand_in = np.broadcast_to(np.zeros((), a.dtype), a.shape) if made else a
    layout = meshes.infer(caller, (stand_in,) if b is None else (stand_in, b), mesh, spec)
    there = memory if memory is not None else plans.limit(layout.platform)
    if not made and fits_in_core(layout, a, there):
        return None
    devices = plans.over(caller, layout.mesh)
    matrices.check_processes(caller, devices, a, donate=False)
    with agreement.in_step(caller, devices, None):
        source = None if made else rows.describe(caller, a)
    cut = chunks.cut(
        caller, devices, a.shape, _columns_of(b), a.dtype,
        plans.budget(memory, there), by_columns=source is not None and source.by_columns,
        function=a.function if made else None, residuals=residuals,
    )  # fmt: skip
    return Pass(caller, a if made else source, b, cut, layout.mesh)


def plan(routine, shape, nrhs, dtype, layout, memory):
    """Returns the `plans.HostPlan` of a call on an array (m, n)."""
    caller, (m, n) = f"plan({routine!r})", shape
    most = plans.known_budget(caller, memory, layout)
    cut = chunks.cut(caller, layout, shape, nrhs, dtype, most, residuals=routine == "lstsq")
    # The Gram matrix of each chunk below R, and for R alone a second one.
    rows = layout.ranks * cut.steps * (cut.rows + n)
    count = rows * (n * n * (1 if nrhs else 2) + 4 * n * nrhs) * (4 if dtype.kind == "c" else 1)
    copies = 2 * layout.ranks // layout.process_count * sum(cut.buffer_bytes)
    return plans.HostPlan(
        routine, n, dtype, cut.rows, cut.chunks, 0, cut.bytes, most, copies, pool.available()[0],
        cut.steps * sum(cut.buffer_bytes), count, layout.ranks, m,
    )  # fmt: skip


def _may_leave(a, b):
    """Whether a call without memory= may have a matrix that doesn't fit the devices."""
    if isinstance(a, Tracer) or isinstance(b, Tracer) or not matrices.is_host(a) or a.ndim != 2:
        return False
    return not plans.surely_fits(a)


def fits_in_core(layout, a, memory):
    """Whether a call that has the matrix on the devices fits in ``memory`` bytes of each."""
    return memory is None or _IN_CORE * a.nbytes <= memory * layout.ranks


def _columns_of(b):
    return 0 if b is None else 1 if b.ndim == 1 else b.shape[1]


def small_problem(request) -> SmallProblem:
    """Returns the `SmallProblem` of a pass."""
    cut = request.cut
    shown = whole_calls.running(request.caller, cut.layout, cut.n, {"pass": 1})
    entered = _compat.entered(cut.layout.mesh)
    with shown, entered, _compat.default_promotion(), contextlib.ExitStack() as s:
        b = request.b
        if b is not None:
            b = np.ascontiguousarray(rendezvous.gather(b).reshape(cut.m, -1))
        state = ffi.meet_first(cut.layout, *_run(request, b, s))
        r, c, squares, e, f = chunks.host_scaled(cut)(*state)
    return SmallProblem(r, c, squares, e, f, cut.layout)


def _run(request, b, stack):
    """Returns the `chunks.SoFar` of all rows."""
    cut, a = request.cut, request.a
    ranks, mesh = cut.layout.ranks, cut.layout.mesh
    parameters = ()
    if cut.function:
        parameters, a = tiles.put_parameters(a, cut.layout), None
    sources = [a, None if b is None else rows.describe(request.caller, b)]
    sample = b"" if a is None or not cut.layout.processes else matrices.sample(a.keep)
    shape = (request.caller, cut.m, cut.n, cut.nrhs, cut.dtype, cut.rows, cut.by_columns)
    with agreement.in_step(request.caller, cut.layout, (*shape, sample)):
        feed = _Feed(request.caller, cut, sources, stack)
    by_device = NamedSharding(mesh, P(cut.layout.rows))
    live: list[typing.Any] = []
    stack.callback(driver.wait_for, live)
    a0, b0, a1, b1, *state = chunks.host_start(cut)()
    buffers = [[a0, b0], [a1, b1]]
    step, before = chunks.host_step(cut), None
    for i in range(-1, cut.steps):
        following = feed.prepare(i + 1)
        here = [i * ranks + rank for rank in range(ranks)]
        ends = [cut.ends(q) if i >= 0 else (0, 0) for q in here]
        call = [
            (feed.handle, next_, first == end, 0)
            for next_, (first, end) in zip(following, ends, strict=True)
        ]
        place = [(first, end - first, cut.m - 1) for first, end in ends]
        call, place = (places.put(np.array(x, np.int32), by_device) for x in (call, place))
        now, then = buffers[i % 2], buffers[(i + 1) % 2]
        live[:] = [*now, *then, *state]
        done, then[0], then[1], *state = step(call, place, *now, *then, *state, *parameters)
        live[:] = [*now, *then, *state]
        # One call is under way while this thread prepares the next one. Ctrl-C comes between two.
        if before is not None:
            before.block_until_ready()
            whole_calls.advance("pass", i, cut.steps, i / cut.steps)
        before = done
    jax.block_until_ready(state)
    return state


class _Feed:
    """Makes the chunks of A and b known to native calls.

    Attributes:
        handle: the id for native calls; 0 if there is nothing to load.
    """

    def __init__(self, caller, cut, sources, stack):
        self._cut, self._sources = cut, sources
        self._plugin = plugins.load(cut.layout.platform)
        self.handle = 0
        if all(source is None for source in sources):
            return
        found = [[part[1] for part in s.parts] if s is not None else [] for s in sources]
        pageable = [pool.is_pageable(self._plugin, each) for each in found]
        self._pageable = pageable
        counts = [
            count if staged else 0 for count, staged in zip(cut.buffer_bytes, pageable, strict=True)
        ]
        self._counts, self._slot = counts, 0
        if any(pageable):
            total = 2 * len(cut.here) * sum(counts)
            span = pool.take(total) or pool.allocate(
                caller, self._plugin, total, "copies of chunks in pinned memory"
            )
            stack.callback(span.release)
            self._slot = span.address
        bytes_ = tuple(max(count, 1) for count in cut.buffer_bytes)
        pieces = [
            [
                (buffer, offset, pitch, place or address, pitch if place else step, count, times)
                for buffer, place, (offset, pitch, address, step, count, times) in self._pieces(q)
            ]
            if q % cut.layout.ranks in cut.here
            else []
            for q in range(cut.chunks)
        ]
        self.handle = self._plugin.host_open_chunks(bytes_, pieces)
        stack.callback(self._plugin.host_close_chunks, self.handle)

    def _pieces(self, chunk):
        """Yields (buffer, address in pinned memory, piece of `rows.Rows`) for a chunk of this
        process's devices. The address
        is 0 for what the devices can copy from where it is."""
        cut, ranks = self._cut, self._cut.layout.ranks
        step, rank = divmod(chunk, ranks)
        place = step % 2 * len(cut.here) + cut.here.index(rank)
        slot = self._slot + place * sum(self._counts)
        for buffer, source in enumerate(self._sources):
            if source is not None:
                place = slot + buffer * self._counts[0]
                for piece in source.pieces(*cut.ends(chunk), cut.rows):
                    yield buffer, place + piece[0] if self._pageable[buffer] else 0, piece

    def prepare(self, step):
        """Returns for each device the chunk that its native call is to load for a step; -1: none.
        The native call before the last one must have ended."""
        cut, ranks = self._cut, self._cut.layout.ranks
        following = [step * ranks + rank for rank in range(ranks)]
        following = [q if self.handle and q < cut.chunks else -1 for q in following]
        for chunk in following:
            if chunk < 0 or chunk % ranks not in cut.here or not any(self._pageable):
                continue
            for _, place, (_, pitch, address, step_, count, times) in self._pieces(chunk):
                if place:
                    self._plugin.host_copy(
                        place, address, times, count, pitch, step_, pool.threads()
                    )
        return following
