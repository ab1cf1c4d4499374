"""Decides where a call on a matrix in host memory is computed, and computes it there.

`choose` returns a `Request` for the devices (`Request.in_core`), with which the ordinary call goes
on, or one that `solve` and `factor` take.
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
from jaxmg._call import checks
from jaxmg._host import (
    agreement,
    block_columns,
    driver,
    lu,
    matrices,
    plans,
    pool,
    tiles,
    whole_calls,
)
from jaxmg._host import factor as host_factor
from jaxmg._layouts import meshes, places
from jaxmg._plugin import plugins


@dataclasses.dataclass(frozen=True)
class Request:
    """A call on a matrix in host memory, with valid arguments.

    Attributes:
        caller: the public function.
        a, b: the arguments; b is None for a factorization.
        mesh: the caller's mesh.
        geometry: how the matrix is cut into block columns; None: in core.
        room: bytes of each device, from `plans.cut`.
        donate: as passed.
        inverts: whether the call needs the inverse of the matrix.
    """

    caller: str
    a: typing.Any
    b: typing.Any
    mesh: typing.Any
    geometry: block_columns.Geometry | None
    donate: bool
    room: int = 0
    inverts: bool = False

    @property
    def in_core(self) -> bool:
        return self.geometry is None


def choose(
    caller, a, b=None, *, mesh, spec, memory, donate, pad, tile, backend, precision, refine,
    check=False, inverts=False,
):  # fmt: skip
    """Returns the `Request` of a call whose matrix is in host memory; None if the ordinary call is
    to go on with it.

    Args:
        caller: "potrs", "cho_factor", "gaussian_log_likelihood", "gesv" or "lu_factor".
        inverts: whether the call needs the inverse of the matrix.
        b: None for a factorization.
        tile, backend, precision, refine, check, pad, donate: the arguments of these names.
    """
    made = isinstance(a, tiles.Tiles)
    if memory is None and not made and (a.ndim != 2 or plans.surely_fits(a)):
        return None
    if memory is not None:
        memory = pool.positive(caller, "memory", memory)
        require_host(caller, a)
    if made or memory is not None:
        meshes.refuse_manual_axes(caller)
        matrices.require_values(caller, (a, b))
    elif not _compat.trace_state_clean() or isinstance(b, Tracer):
        return None
    matrices.check(caller, a, pad)
    n, nrhs = a.shape[1], 0
    if b is not None:
        checks.right_hand_side(caller, jax.ShapeDtypeStruct(a.shape, a.dtype), b)
        nrhs = 1 if b.ndim == 1 else b.shape[1]
    stand_in = np.broadcast_to(np.zeros((), a.dtype), a.shape) if made else a
    located = (stand_in,) if b is None else (stand_in, b)
    if n == 0:
        return Request(caller, np.zeros((0, 0), a.dtype), b, mesh, None, donate) if made else None
    layout = meshes.infer(caller, located, mesh, spec)
    there = memory if memory is not None else plans.limit(layout.platform)
    native, general = "potri" if inverts else _NATIVE[caller], caller in plans.LU
    copies = (1 if made else 2) + inverts
    if plans.fits_in_core(layout, native, n, a.dtype, nrhs, there, copies):
        if not made:
            return None
        devices = plans.over(caller, layout.mesh)
        if not general:
            tiles.check_hermitian(caller, a, devices)
        with _compat.entered(devices.mesh):
            matrix = tiles.make(a, devices, whole=general)
        return Request(caller, matrix, b, devices.mesh, None, True)
    devices = plans.over(caller, layout.mesh)
    matrices.check_processes(caller, devices, a, donate)
    _refuse_options(caller, tile, backend, refine)
    products = checks.precision(caller, precision, a.dtype, "native")
    # There is a limit, because a call without one has ended above, in core.
    limit: typing.Any = plans.budget(memory, there)
    geometry, _, room = plans.cut(
        caller, devices, n, nrhs, a.dtype, int(limit), products,
        memory is not None, general,
    )  # fmt: skip
    if check and isinstance(a, np.ndarray):
        matrices.check_symmetry(caller, a)
    elif check and not made:
        raise ValueError(
            f"{caller}: check=True needs a NumPy array where a goes through the devices by block "
            "columns; got a JAX array in pinned host memory"
        )
    return Request(caller, a, b, layout.mesh, geometry, donate, room, inverts)


# The native routine of each caller in core.
_NATIVE = {
    "potrs": "potrs", "cho_factor": "potrf", "gaussian_log_likelihood": "potrf", "gesv": "gesv",
    "lu_factor": "getrf",
}  # fmt: skip


def require_host(caller, a, shape="(n, n)"):
    """Raises if memory= is passed for a matrix that isn't in host memory, or for a batch."""
    if isinstance(a, Tracer):
        matrices.require_values(caller, a)
    if not matrices.is_host(a) and checks.is_array(a):
        raise ValueError(
            f"{caller}: memory= is for a matrix in host memory: a NumPy array, a JAX array of "
            "memory kind 'pinned_host', or jaxmg.Tiles; a is on the devices already"
        )
    if not matrices.is_host(a):
        checks.is_an_array(caller, "a", a)
    if a.ndim != 2:
        raise ValueError(
            f"{caller}: with memory= a must be one matrix of shape {shape}; it has shape "
            f"{tuple(a.shape)}"
        )


def _refuse_options(caller, tile, backend, refine):
    for name, value, default in (("T_A", tile, None), ("refine", refine, None)):
        if value is not default:
            raise ValueError(
                f"{caller}: {name}={value!r} isn't supported for a matrix in host memory that "
                "doesn't fit the devices; leave it out"
            )
    checks.backend(caller, backend, ["native"], "host memory")


def solve(request, return_logdet, return_status) -> typing.Any:
    """Returns the results of `jaxmg.potrs` for a request out of core."""
    with _context(request):
        factor, x, conjugated = _factorize(request, request.b)
        try:
            if int(factor.status) == 0:
                x = factor._backward(x)
        finally:
            factor.release()
            if request.donate and isinstance(request.a, jax.Array):
                request.a.delete()
        x = host_factor.finish(x, request.b, request.mesh, conjugated)
        found = (x, *((factor.log_det,) if return_logdet else ()))
        found += (factor.status,) if return_status else ()
    return found if len(found) > 1 else x


@contextlib.contextmanager
def factored(request):
    """Yields (`host_factor.HostCholeskyFactor`, L^-1 b) of a request out of core, b of shape (n,
    nrhs). The factor is released at the end."""
    with _context(request):
        factor, x, _ = _factorize(request, request.b)
        try:
            yield factor, x
        finally:
            factor.release()


def solve_general(request, return_logdet, return_status) -> typing.Any:
    """Returns the results of `jaxmg.gesv` for a request out of core."""
    b = request.b
    with _context(request):
        factor, x = _factorize_lu(request, b)
        try:
            if x is None:
                x = factor.solve(b)
            else:
                x = host_factor.finish(factor._substitute(x), b, request.mesh, conjugated=False)
        finally:
            factor.release()
            if request.donate and isinstance(request.a, jax.Array):
                request.a.delete()
    found = (x, *(factor.slogdet() if return_logdet else ()))
    found += (factor.status,) if return_status else ()
    return found if len(found) > 1 else x


def factorize(request) -> typing.Any:
    """Returns the factor for a request out of core."""
    with _context(request):
        if request.caller in plans.LU:
            found = _factorize_lu(request, None)[0]
        else:
            found = _factorize(request, None)[0]
    if request.donate and isinstance(request.a, jax.Array):
        request.a.delete()
    return found


@contextlib.contextmanager
def _context(request):
    geometry = request.geometry
    cube, square = geometry.n**3, geometry.n**2 * geometry.nrhs
    phases = {"factor": cube * (2 if geometry.whole else 1) / 3}
    if request.b is not None:
        phases["substitute"] = square
    if request.inverts:
        phases["invert"] = 2 * cube / 3
    layout = geometry.layout
    with (
        _compat.entered(layout.mesh),
        whole_calls.running(request.caller, layout, geometry.n, phases),
    ):
        yield


# A factor that doesn't fit in host memory is stored in narrower block columns, which waste less,
# down to this share of the width that the devices allow.
_NARROWEST = 8


def _allocate(request):
    """Returns (`block_columns.Geometry`, `driver.Storage`) of a factor in memory of its own."""
    caller, geometry = request.caller, request.geometry
    shapes: list[typing.Any] = [geometry]
    # All processes must take one width, whatever memory each of them has.
    while (
        not geometry.local
        and (shape := plans.narrower(shapes[-1], request.room))
        and shape.width * _NARROWEST >= geometry.width
    ):
        shapes.append(shape)
    for shape in shapes:
        span = pool.take(driver.packed_bytes(shape))
        if span is not None:
            return shape, driver.packed(shape, span)
    there = pool.available()[0]
    fitting = (s for s in shapes if there is None or driver.packed_bytes(s) <= there)
    shape = next(fitting, shapes[-1])
    plugin = plugins.load(geometry.layout.platform)
    made = isinstance(request.a, tiles.Tiles)
    what = "the factor" if made else "the factor, with donate=False beside a,"
    span = pool.allocate(caller, plugin, driver.packed_bytes(shape), what)
    return shape, driver.packed(shape, span)


def _place(request, b):
    """Returns (the matrix as `driver.factorize` takes it, `block_columns.Geometry`,
    `driver.Storage` of the factor, whether it takes a's memory), in all processes or in none."""
    geometry, found = request.geometry, None
    call = (
        request.caller, geometry.n, geometry.nrhs, geometry.dtype, geometry.width, geometry.cache,
        geometry.products, matrices.sample(request.a) if geometry.local else b"",
    )  # fmt: skip
    try:
        with agreement.in_step(request.caller, geometry.layout, call):
            found = _place_here(request, b)
    except BaseException:
        if found is not None:
            found[2].release()
        raise
    return found


def _place_here(request, b):
    caller, geometry, a = request.caller, request.geometry, request.a
    if isinstance(a, tiles.Tiles):
        if caller not in plans.LU:
            tiles.check_hermitian(caller, a, geometry.layout)
        return a, *_allocate(request), False
    source = matrices.describe(caller, a, request.donate, hermitian=caller not in plans.LU)
    if request.donate:
        matrices.separate(caller, a, b)
    # JAX arrays on CPU devices may be the memory of a caller's NumPy array.
    # A kept factor would leave a JAX array alive whose memory has the factor.
    ours = isinstance(a, np.ndarray) or (geometry.layout.platform != "cpu" and b is not None)
    if request.donate and ours and len(source.rows) == 1:
        return source, geometry, driver.in_place(geometry, source), True
    return source, *_allocate(request), False


@contextlib.contextmanager
def _given_back(request, storage, in_place):
    """Gives the memory of a factor back if it isn't completed."""
    try:
        yield
    except BaseException:
        storage.release()
        if in_place and isinstance(request.a, jax.Array):
            request.a.delete()  # it has a part of the factor
        raise


@_compat.default_promotion()
def _factorize(request, b):
    """Returns (factor, right-hand sides after the forward substitution, whether the memory has the
    conjugate of the matrix)."""
    source, geometry, storage, in_place = _place(request, b)
    conjugated = getattr(source, "transposed", False) and np.dtype(geometry.dtype).kind == "c"
    with _given_back(request, storage, in_place):
        x = driver.columns(geometry, b, conjugated)
        x, log_det, status, cache = driver.factorize(geometry, source, storage, x)
    replicated = NamedSharding(request.mesh, P())
    factor = host_factor.HostCholeskyFactor(
        geometry, storage, cache, jax.device_put(log_det, replicated),
        places.put(np.int32(status), replicated), request.mesh, conjugated,
    )  # fmt: skip
    return factor, x, conjugated


@_compat.default_promotion()
def _factorize_lu(request, b):
    """Returns (factor, B U^-1), or (factor, None) if the memory has the transposed matrix: its
    right-hand sides can't be solved for before all of L is there."""
    source, geometry, storage, in_place = _place(request, b)
    transposed = getattr(source, "transposed", False)
    if transposed:
        b, geometry = None, dataclasses.replace(geometry, nrhs=1)
    with _given_back(request, storage, in_place):
        x = driver.columns(geometry, b, conjugated=False)
        factored = lu.factorize(geometry, source, storage, x)
    factor = lu.HostLUFactor(geometry, storage, factored, request.mesh, transposed)
    return factor, None if transposed else factored.x
