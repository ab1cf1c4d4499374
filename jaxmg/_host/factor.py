"""`HostCholeskyFactor`, a factor in host memory."""

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


class HostCholeskyFactor:
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
        self.status = status
        self.n: int = geometry.n
        self.mesh = mesh
        self._geometry, self._storage, self._cache = geometry, storage, cache
        self._log_det = log_det
        self._lock = threading.RLock()  # a release waits for solves of other threads
        self._conjugated = conjugated  # whether it is the factor of the conjugate of A

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
        return self._apply("cho_solve", b, (block_columns.FORWARD, block_columns.BACKWARD))

    def _apply(self, caller, b, directions):
        matrices.require_values(caller, b)
        checks.right_hand_side(caller, jax.ShapeDtypeStruct(self.shape, self.dtype), b)
        with self._lock:
            return self._applied(caller, b, directions)

    def _applied(self, caller, b, directions):
        if not self._storage.blocks:
            raise RuntimeError(f"{caller}: the factor has been released")
        nrhs = 1 if b.ndim == 1 or b.size == 0 else b.shape[1]
        geometry = dataclasses.replace(self._geometry, nrhs=nrhs)
        with _compat.entered(geometry.layout.mesh), _compat.default_promotion():
            x = driver.columns(geometry, b, self._conjugated)
            if int(self.status):
                x = x * jnp.nan
            else:
                for direction in directions:
                    x = self._substitute(geometry, x, direction)
            return finish(x, b, self.mesh, self._conjugated)

    def _substitute(self, geometry, x, direction):
        return driver.substitute(geometry, self._storage, self._cache, x, direction)

    def _backward(self, x):
        """Returns L^-H x, which overwrites x of the factorization, (n, nrhs)."""
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
            self._storage.release()
            self._drop_cache()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a HostCholeskyFactor can't be pickled or copied: its memory is that of this process"
        )

    def __repr__(self) -> str:
        state = pool.readable(self.nbytes) if self._storage.blocks else "released"
        return (
            f"HostCholeskyFactor(n={self.n}, dtype={self.dtype}, "
            f"{self._geometry.blocks} block columns of {self._geometry.width}, "
            f"mesh={dict(self.mesh.shape)}, {state})"
        )


def finish(x, b, mesh, conjugated):
    """Returns x (n, nrhs) in the shape and with the sharding of ``b``; replicated over ``mesh`` if
    b isn't sharded over it."""
    x = results.like(jnp.conj(x) if conjugated else x, b)
    spec = shardings.known_spec(b, mesh)
    return jax.device_put(x, NamedSharding(mesh, P() if spec is None else spec))
