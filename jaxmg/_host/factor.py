"""Factors in host memory: `HostCholeskyFactor`, and the base of all."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import checks, results
from jaxmg._host import block_columns, driver, matrices, pool
from jaxmg._layouts import shardings
from jaxmg._types import MatrixLike, MeshLike


class HostFactor:
    """A factor in host memory.

    Attributes:
        status, n, mesh: as in the public classes.
    """

    # The name of the function that solves, for errors.
    _solver = ""

    def __init__(
        self, geometry: block_columns.Geometry, storage: Any, status: Array, mesh: MeshLike
    ) -> None:
        self.status = status
        self.n: int = geometry.n
        self.mesh = mesh
        self._geometry, self._storage = geometry, storage
        self._lock = threading.RLock()  # a release waits for solves of other threads

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the shape of A, (n, n)."""
        return (self.n, self.n)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the dtype of A and of the factor."""
        return np.dtype(self._geometry.dtype)

    @property
    def nbytes(self) -> int:
        """Returns the bytes of host memory that the factor keeps, without a donated A; 0 after
        `release`."""
        return driver.packed_bytes(self._geometry) if self._storage.spans else 0

    def _apply(self, b, *how):
        """Returns the result of `_applied` for checked right-hand sides."""
        matrices.require_values(self._solver, b)
        checks.right_hand_side(self._solver, jax.ShapeDtypeStruct(self.shape, self.dtype), b)
        with self._lock:
            if not self._storage.blocks:
                raise RuntimeError(f"{self._solver}: the factor has been released")
            nrhs = 1 if b.ndim == 1 or b.size == 0 else b.shape[1]
            geometry = dataclasses.replace(self._geometry, nrhs=nrhs)
            with _compat.entered(geometry.layout.mesh), _compat.default_promotion():
                return self._applied(geometry, b, *how)

    def _applied(self, geometry, b, *how):
        """Returns the solution for right-hand sides of the geometry."""
        raise NotImplementedError

    def release(self) -> None:
        """Gives the factor's memory back. Its numbers stay; `solve` then raises a RuntimeError."""
        with self._lock:
            self._storage.release()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"a {type(self).__name__} can't be pickled or copied: its memory is that of this "
            "process"
        )

    def __repr__(self) -> str:
        state = pool.readable(self.nbytes) if self._storage.blocks else "released"
        return (
            f"{type(self).__name__}(n={self.n}, dtype={self.dtype}, "
            f"{self._geometry.blocks} block columns of {self._geometry.width}, "
            f"mesh={dict(self.mesh.shape)}, {state})"
        )


class HostCholeskyFactor(HostFactor):
    """Holds the Cholesky factor of a Hermitian positive definite A in host memory.

    `cho_factor` creates it from a matrix in host memory that doesn't fit the devices. Its methods
    are computed eagerly, and stream the factor through the devices. It isn't a pytree, and has no
    derivatives. If A isn't positive definite, all results are NaN.

    The factor takes half of A's memory, or A's own if that was donated: then the array must not be
    used, and stays alive with the factor. With ``memory=`` a part of it also stays on the devices,
    within these bytes, until `release`.

    Attributes:
        status: int32 scalar: 0, or LAPACK's info, as in `potrs`.
        n: Order of A.
        mesh: The mesh that the methods run on.
    """

    _solver = "cho_solve"

    def __init__(
        self,
        geometry: block_columns.Geometry,
        storage: Any,
        cache: list[Array],
        log_det: Array,
        status: Array,
        mesh: MeshLike,
        conjugated: bool,
    ) -> None:
        super().__init__(geometry, storage, status, mesh)
        self._cache = cache
        self._log_det = log_det
        self._conjugated = conjugated  # whether it is the factor of the conjugate of A

    @property
    def log_det(self) -> Array:
        """Returns log(det(A)), as `logdet`."""
        return self.logdet()

    def logdet(self) -> Array:
        """Returns log(det(A)), a real scalar; NaN if A isn't positive definite."""
        return self._log_det

    @_compat.api_boundary
    def solve(self, b: MatrixLike) -> Array:
        """Solves A x = b.

        Args:
            b: (n,) or (n, nrhs), of the factor's dtype; a JAX or NumPy array with values.

        Returns:
            x, of b's shape, dtype and sharding, as in `potrs`.

        Cost: 2 n^2 nrhs flops, and two copies of the factor from host memory to the devices.

        Raises:
            TypeError, ValueError: As `cho_solve`, and if b is traced.
            RuntimeError: The factor has been released.
        """
        return self._apply(b)

    def _applied(self, geometry, b):
        x = driver.columns(geometry, b, self._conjugated)
        if int(self.status):
            x = x * jnp.nan
        else:
            for direction in (block_columns.FORWARD, block_columns.BACKWARD):
                x = self._substitute(geometry, x, direction)
        return finish(x, b, self.mesh, self._conjugated)

    def _substitute(self, geometry, x, direction):
        return driver.substitute(geometry, self._storage, self._cache, x, direction)

    def _backward(self, x):
        """Returns L^-H x in the memory of ``x`` (n, nrhs), a result of the factorization."""
        return self._substitute(self._geometry, x, block_columns.BACKWARD)

    def _invert(self, use):
        """Replaces the factor by the inverse of A (`driver.invert`); only `release` may follow."""
        self._drop_cache()
        driver.invert(dataclasses.replace(self._geometry, cache=0), self._storage, use)

    def _drop_cache(self):
        while self._cache:
            self._cache.pop().delete()

    def release(self) -> None:
        """Gives the factor's memory back. `logdet` and ``status`` stay; other methods raise a
        RuntimeError."""
        with self._lock:
            super().release()
            self._drop_cache()


def finish(x, b, mesh, conjugated):
    """Returns x (n, nrhs) in the shape and with the sharding of ``b``; replicated over ``mesh`` if
    b isn't sharded over it."""
    x = results.like(jnp.conj(x) if conjugated else x, b)
    spec = shardings.known_spec(b, mesh)
    return jax.device_put(x, NamedSharding(mesh, P() if spec is None else spec))
