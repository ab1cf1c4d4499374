"""Routines of one cuSOLVER library, called through ctypes on JAX's arrays. The library may be newer
than the one that JAX has loaded, in the same process and on the same matrices.

Matrices are real, square and column-major, as cuSOLVER expects: an array holds the transpose.
Routines overwrite their operands. A call returns when its results are complete.
"""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np

_TYPES = {"float32": 0, "float64": 1}  # values of cudaDataType
_VECTORS, _NO_TRANSPOSE, _WHOLE_MATRIX = 1, 0, 2


class Library:
    """A loaded library.

    Attributes:
        version: the library's version, such as "12.4.1".
    """

    def __init__(self, path):
        jax.block_until_ready(jnp.zeros(1))  # loads libraries that this one needs, such as cuBLAS
        jax.block_until_ready(jnp.linalg.inv(jnp.eye(4)))
        self._library = ctypes.CDLL(path)
        self._driver = ctypes.CDLL("libcuda.so.1")
        parts = [ctypes.c_int() for _ in range(3)]
        for i, part in enumerate(parts):
            self._check("cusolverGetProperty", i, ctypes.byref(part))
        self.version = ".".join(str(part.value) for part in parts)
        self._handle, self._params = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("cusolverDnCreate", ctypes.byref(self._handle))
        self._check("cusolverDnCreateParams", ctypes.byref(self._params))
        self._info = jnp.zeros(1, jnp.int32)
        self._work = {}

    def getrs(self, at, b):
        """Computes X of A X = B by Xgetrf and Xgetrs, in place of B (n, 1), a vector."""
        n, kind = self._facts(at)
        pivots = self._room("pivots", (n,), jnp.int64)
        matrix = (kind, _pointer(at), n)
        sizes = (n, n, *matrix, kind)
        work = self._workspace("cusolverDnXgetrf", at, sizes)
        factor = (n, n, *matrix, _pointer(pivots), kind)
        self._call("cusolverDnXgetrf", *factor, *work, _pointer(self._info))
        solve = (_NO_TRANSPOSE, n, 1, *matrix, _pointer(pivots), kind, _pointer(b), n)
        self._call("cusolverDnXgetrs", *solve, _pointer(self._info))
        return self._done(b)

    def gesvd(self, at, vectors=True):
        """Computes (U, s, V^H) by Xgesvd, with U and V^H transposed; or only s."""
        n, kind = self._facts(at)
        u, s, vh = self._factors(at)
        job = ord("S" if vectors else "N")
        operands = (
            job, job, n, n, kind, _pointer(at), n, kind, _pointer(s), kind, _pointer(u), n,
            kind, _pointer(vh), n, kind,
        )  # fmt: skip
        work = self._workspace("cusolverDnXgesvd", at, operands, key=vectors)
        self._call("cusolverDnXgesvd", *operands, *work, _pointer(self._info))
        return self._done((u, s, vh) if vectors else s)

    def gesvdp(self, at):
        """Computes (U, s, V^H) by Xgesvdp, with U transposed."""
        n, kind = self._facts(at)
        u, s, v = self._factors(at)
        economy = 1
        operands = (
            _VECTORS, economy, n, n, kind, _pointer(at), n, kind, _pointer(s), kind, _pointer(u),
            n, kind, _pointer(v), n, kind,
        )  # fmt: skip
        work = self._workspace("cusolverDnXgesvdp", at, operands)
        perturbation = ctypes.c_double()
        self._call(
            "cusolverDnXgesvdp", *operands, *work, _pointer(self._info), ctypes.byref(perturbation)
        )
        return self._done((u, s, v))

    def polar(self, at):
        """Computes (U, H) by Xpolar, both transposed."""
        n, kind = self._facts(at)
        h = self._room("h", at.shape, at.dtype)
        operands = (_WHOLE_MATRIX, n, n, kind, _pointer(at), n, kind, _pointer(h), n, kind)
        work = self._workspace("cusolverDnXpolar", at, operands)
        numbers = [_pointer(self._room(name, (1,), jnp.float64)) for name in ("r", "a", "c")]
        self._call("cusolverDnXpolar", *operands, *work, *numbers, _pointer(self._info))
        return self._done((at, h))

    def _facts(self, at):
        jax.block_until_ready(at)
        assert at.ndim == 2 and at.shape[0] == at.shape[1], at.shape
        return at.shape[0], _TYPES[at.dtype.name]

    def _factors(self, at):
        rooms = (at.shape, at.shape[:1], at.shape)
        return [self._room(i, shape, at.dtype) for i, shape in enumerate(rooms)]

    def _room(self, name, shape, dtype):
        """Returns an array that calls of the same shape share."""
        key = (name, shape, jnp.dtype(dtype))
        if key not in self._work:
            self._work[key] = jax.block_until_ready(jnp.zeros(shape, dtype))
        return self._work[key]

    def _workspace(self, name, at, operands, key=None):
        """Returns the arguments for a routine's workspace on the device and on the host."""
        key = (name, at.shape, at.dtype, key)
        if key not in self._work:
            sizes = [ctypes.c_size_t() for _ in range(2)]
            self._call(name + "_bufferSize", *operands, *map(ctypes.byref, sizes))
            device, host = (max(size.value, 1) for size in sizes)
            device = jax.block_until_ready(jnp.zeros(device, jnp.uint8))
            self._work[key] = device, np.zeros(host, np.uint8)
        device, host = self._work[key]
        return (
            _pointer(device), ctypes.c_size_t(device.size),
            ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(host.size),
        )  # fmt: skip

    def forget(self):
        """Frees the memory that calls share."""
        self._work.clear()

    def _call(self, name, *arguments):
        self._check(name, self._handle, self._params, *arguments)

    def _check(self, name, *arguments):
        # All integers are passed as 64 bits; for a 32-bit parameter C reads the lower half.
        arguments = [ctypes.c_int64(x) if isinstance(x, int) else x for x in arguments]
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def _done(self, results):
        status = self._driver.cuCtxSynchronize()
        if status or int(self._info[0]):
            raise RuntimeError(f"status {status}, info {int(self._info[0])}")
        return results


def _pointer(array):
    return ctypes.c_void_p(array.unsafe_buffer_pointer())


def transposed(results):
    """Returns the factors of A, which the library has stored transposed."""
    return tuple(x.T if x.ndim == 2 else x for x in results)


def left_transposed(results):
    """Returns (U, s, V^H) of A, where the library has stored U transposed."""
    u, s, vh = results
    return u.T, s, vh
