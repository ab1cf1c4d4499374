"""`HostLUFactor`, LU factors in host memory, and the calls that factor and solve.

The columns of M are the rows of memory, so M is the transpose of A, or A itself if A is
Fortran-ordered. Each block column of L has its rows in the order of its own step:
M = P0^T L0 P1^T L1 ... U.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._host import block_columns, driver, whole_calls
from jaxmg._host import factor as host_factor
from jaxmg._kept import transposed
from jaxmg._layouts import places
from jaxmg._types import MatrixLike, MeshLike, Trans


class Factored(typing.NamedTuple):
    """The result of `factorize`; x is B U^-1. ``cache`` has the array with the part of L that is
    still on the devices, if any."""

    x: Array
    pivots: Array
    log_abs: Array
    sign: Array
    status: int
    cache: list[Array]


def factorize(geometry, source, factor, x):
    """Factors a matrix; the `driver.Storage` ``factor`` gets the factors. Returns `Factored`.

    Args:
        source: a `HostMatrix`, or `Tiles`.
        x: right-hand sides from `driver.columns`; donated.
    """
    run, live = block_columns.host_lu(geometry), [x]
    with contextlib.ExitStack() as stack:
        feed = driver.feed_from(geometry, source, stack)
        handle = stack.enter_context(driver.registered(geometry, factor.blocks, feed.blocks))
        stack.callback(driver.wait_for, live)
        buffer, rest = block_columns.host_buffer(geometry), block_columns.host_cache(geometry)
        pivots = places.put(np.zeros(geometry.n, np.int32), geometry.layout.sharding(P()))
        live[:] = [buffer(), buffer(), x, pivots, *([rest()] if geometry.cache else [])]
        shares, signs, status = [], [], 0
        for j in range(geometry.blocks):
            live[j % 2] = feed.prepare(j, live[j % 2])
            found = run(block_columns.operand(handle, j), *live)
            live[:4], (share, sign, info), live[4:] = found[:4], found[4:7], found[7:]
            shares.append(share)
            signs.append(sign)
            info = int(np.asarray(info)[0])  # waits, so that Ctrl-C comes between two calls
            whole_calls.advance("factor", j + 1, geometry.blocks, whole_calls.of_lu(geometry, j))
            if info < 0:  # x, this share and this sign are NaN
                status = info
                break
            if info > 0 and status == 0:  # counts within the block column
                status = geometry.ends(j)[0] + info
        log_abs, sign = sum(shares[1:], shares[0])[0], math.prod(signs[1:], start=signs[0])[0]
        return Factored(live[2], live[3], log_abs, sign, status, live[4:])


def substitute(geometry, factor, pivots, cache, x, sweep):
    """Applies a substitution of `block_columns` with LU factors to x (n, nrhs), which it
    overwrites."""
    if not cache:
        geometry = dataclasses.replace(geometry, cache=0)
    run, live = block_columns.host_lu_sweep(geometry), [x]
    order = range(geometry.blocks)
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(driver.registered(geometry, factor.blocks, []))
        stack.callback(driver.wait_for, live)
        steps = order if sweep in block_columns.ASCENDING else reversed(order)
        for step, j in enumerate(steps, 1):
            live[0] = run(block_columns.operand(handle, j, sweep), live[0], pivots, *cache)
            live[0].block_until_ready()
            whole_calls.advance("substitute", step, geometry.blocks, step / geometry.blocks)
    return live[0]


# The substitutions that solve with M^T (which is A, unless A is Fortran-ordered), M and conj(M).
_SWEEPS = {
    "N": (block_columns.UPPER, block_columns.LOWER),
    "T": (block_columns.LOWER_TRANS, block_columns.UPPER_TRANS),
    "C": (block_columns.LOWER_ADJOINT, block_columns.UPPER_ADJOINT),
}


class HostLUFactor(host_factor.HostFactor):
    """Holds the LU factorization with partial pivoting of a square A in host memory.

    `lu_factor` creates it from a matrix in host memory that doesn't fit the devices. Its methods
    are computed eagerly, and stream the factors through the devices. It isn't a pytree, and has no
    derivatives.

    The factors take as much memory as A, or A's own if that was donated: then the array must not be
    used, and stays alive with the factor. With ``memory=`` a part of L also stays on the devices,
    within these bytes, until `release`. If A is singular, solutions have infinity or NaN, and the
    determinant is 0. If A has NaN or infinity, all results are NaN.

    Attributes:
        status: int32 scalar, as in `gesv`.
        n: Order of A.
        mesh: The mesh that the methods run on.
    """

    _solver = "HostLUFactor.solve"

    def __init__(
        self,
        geometry: block_columns.Geometry,
        storage: driver.Storage,
        factored: Factored,
        mesh: MeshLike,
        transposed: bool,
    ) -> None:
        replicated = NamedSharding(mesh, P())
        status = places.put(np.int32(factored.status), replicated)
        super().__init__(geometry, storage, status, mesh)
        self._pivots, self._cache = factored.pivots, factored.cache
        self._log_abs = jax.device_put(factored.log_abs, replicated)
        self._sign = jax.device_put(factored.sign, replicated)
        self._transposed = transposed  # whether they are the factors of A, and not of A^T

    @_compat.api_boundary
    def solve(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """Solves op(A) x = b.

        Args:
            b: (n,) or (n, nrhs), of the factor's dtype; a JAX or NumPy array with values.
            trans: 0 or "N" for A x = b, 1 or "T" for A^T x = b, 2 or "C" for A^H x = b.

        Returns:
            x, of b's shape, dtype and sharding, as in `gesv`.

        Cost: 2 n^2 nrhs flops, and one copy of the factors from host memory to the devices.

        Raises:
            TypeError, ValueError: As `LUFactor.solve`, and if b is traced.
            RuntimeError: The factor has been released.
        """
        return self._apply(b, transposed.checked(self._solver, "A", trans))

    def _applied(self, geometry, b, how):
        # With conjugates, A^H x = b is conj(A)^T x = b.
        conjugated = how == "C" and self._transposed
        if self._transposed:
            how = "T" if how == "N" else "N"
        x = driver.columns(geometry, b, conjugated)
        for sweep in _SWEEPS[how]:
            x = self._swept(geometry, x, sweep)
        return host_factor.finish(x, b, self.mesh, conjugated)

    def _swept(self, geometry, x, sweep):
        if int(self.status) < 0:
            return x * jnp.nan
        return substitute(geometry, self._storage, self._pivots, self._cache, x, sweep)

    def _substitute(self, x):
        """Returns X L^-1 P for x of `factorize`."""
        return self._swept(self._geometry, x, block_columns.LOWER)

    @_compat.api_boundary
    def slogdet(self) -> tuple[Array, Array]:
        """Returns the sign of det(A) and log(abs(det(A))), as `jax.numpy.linalg.slogdet`."""
        return self._sign, self._log_abs

    @_compat.api_boundary
    def logdet(self) -> Array:
        """Returns log(abs(det(A))), a real scalar; -inf if A is singular."""
        return self._log_abs

    @_compat.api_boundary
    def det(self) -> Array:
        """Returns det(A), a scalar of A's dtype. It can overflow; `slogdet` can't."""
        with _compat.default_promotion():
            return self._sign * jnp.exp(self._log_abs).astype(self.dtype)

    def release(self) -> None:
        """Gives the factors' memory back. `slogdet`, `logdet`, `det` and ``status`` stay; `solve`
        then raises a RuntimeError."""
        with self._lock:
            super().release()
            while self._cache:
                self._cache.pop().delete()
