"""Functions of JAXMg 1.4.1 that have another name or form here.

These are `gesvd`, `polar`, `device_supports_vmm`, and functions for global arrays inside ``jit``,
which JAXMg names ``*_shardmap_ctx``.
"""

from __future__ import annotations

import ctypes
from typing import Any, SupportsIndex, cast

import jax
import jax.numpy as jnp
from jax import Array

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._call.arguments import matrix_spec
from jaxmg._layouts import layouts
from jaxmg._lu import gesv
from jaxmg._qr import gels, qr
from jaxmg._svd import linalg as svd_linalg
from jaxmg._types import MatrixLike, MeshLike, Specs

# CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED of cuda.h.
_VIRTUAL_MEMORY = 102


@_compat.api_boundary
def gesvd(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    compute_u: bool = True,
    compute_vh: bool = True,
    full_matrices: bool = False,
    return_status: bool = False,
    pad: bool = True,
    donate: bool = False,
) -> Array | tuple[Array, ...]:
    """Computes the singular value decomposition, with the arguments of JAXMg 1.4.1.

    It calls `jaxmg.linalg.svd`.

    Args:
        a: (m, n), float32, float64, complex64 or complex128, sharded by rows.
        mesh, matrix_specs, in_specs: As in `geqrf`.
        compute_u, compute_vh: Whether to return U and V^H. One of them costs as much as both.
        full_matrices: Whether to return all m columns of U and all n rows of V^H.
        return_status: Whether to return the status too.
        T_A, pad: Ignored.
        donate: Whether to delete ``a`` after an eager call. In JAXMg 1.4.1 the default is True.

    Returns:
        (U, s, V^H) | (U, s) | (s, V^H) | s, followed by the status if requested. The status is an
        int32 array of shape (1,): 0, or -1 if ``a`` has NaN or infinity.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.linalg.svd`.

    Examples:
        >>> u, s = jaxmg.gesvd(a, 256, compute_vh=False)
    """
    where = _check("gesvd", a, T_A, mesh, matrix_specs, in_specs)
    u = vh = None
    if compute_u or compute_vh:
        u, s, vh = svd_linalg.svd(a, bool(full_matrices), **where)
    else:
        s = svd_linalg.svdvals(a, **where)
    vectors = (compute_u, u), (True, s), (compute_vh, vh)
    results = tuple(value for wanted, value in vectors if wanted and value is not None)
    return _finish(a, results, _status(s), return_status, donate)


@_compat.api_boundary
def polar(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    compute_h: bool = True,
    return_status: bool = False,
    pad: bool = True,
    donate: bool = False,
) -> Array | tuple[Array, ...]:
    """Computes the polar decomposition A = U H, with the arguments of JAXMg 1.4.1.

    It calls `jaxmg.linalg.polar`.

    Args:
        a, T_A, mesh, matrix_specs, in_specs, return_status, pad, donate: As in `gesvd`.
        compute_h: Whether to return H.

    Returns:
        (U, H) | U, followed by the status if requested, as in `gesvd`.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.linalg.polar`.
    """
    where = _check("polar", a, T_A, mesh, matrix_specs, in_specs)
    u, h = svd_linalg.polar(a, **where)
    results = (u, h) if compute_h else (u,)
    return _finish(a, results, _status(u), return_status, donate)


def _check(name, a, T_A, mesh, matrix_specs, in_specs):
    """Checks the arguments of a call; returns those for the mesh and the sharding."""
    checks.array(name, "a", a, checks.ALL)
    if a.ndim < 2:
        raise ValueError(f"{name}: a must be a matrix of shape (m, n); it has shape {a.shape}")
    checks.tile(name, T_A)
    return {"mesh": mesh, "matrix_specs": matrix_spec(name, matrix_specs, in_specs)}


def _status(result):
    is_finite = jnp.all(jnp.isfinite(result))
    return jnp.where(is_finite, 0, -1).astype(jnp.int32).reshape(1)


def _finish(a, results, status, return_status, donate):
    if return_status:
        results = (*results, status)
    if donate and isinstance(a, jax.Array) and not layouts.traced((a,)):
        jax.block_until_ready(results)
        a.delete()
    return results if len(results) > 1 else results[0]


def gesvd_shardmap_ctx(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    **options: Any,
) -> tuple[Array, ...]:
    """Calls `gesvd` with global arrays inside ``jit``; returns (a_work, ..., status).

    ``a_work`` is ``a``.
    """
    results: Any = gesvd(a, T_A, mesh, matrix_specs, return_status=True, **options)
    return cast(Array, a), *results


def polar_shardmap_ctx(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    **options: Any,
) -> tuple[Array, ...]:
    """Calls `polar` with global arrays inside ``jit``; returns (U, H, status) or (U, status)."""
    results: Any = polar(a, T_A, mesh, matrix_specs, return_status=True, **options)
    return results


def qr_shardmap_ctx(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    pad: bool = True,
) -> tuple[Array, ...]:
    """Calls `qr` with global arrays inside ``jit``; returns (Q, R, status)."""
    q, r, status = qr.qr(a, T_A, mesh, matrix_specs, in_specs=in_specs, return_status=True)
    return q, r, status.reshape(1)


def lu_solve_shardmap_ctx(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    pad: bool = True,
) -> tuple[Array, ...]:
    """Calls `lu_solve` with global arrays inside ``jit``; returns (a_work, x, status)."""
    work, x, status = gesv.with_work(a, b, T_A, mesh, matrix_specs, in_specs, pad)
    return work, x, status.reshape(1)


def least_squares_shardmap_ctx(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    pad: bool = True,
) -> tuple[Array, ...]:
    """Calls `least_squares` with global arrays inside ``jit``; returns (a_work, b_work, x, status).

    ``a_work`` is ``a``. ``b_work`` has b's shape; it is x followed by zeros if ``a`` is tall, and
    the first rows of x otherwise.
    """
    x, status = gels.least_squares(
        a, b, T_A, mesh, matrix_specs, in_specs=in_specs, return_status=True
    )
    m, n = a.shape
    below = ((0, max(m - n, 0)),) + ((0, 0),) * (x.ndim - 1)
    return cast(Array, a), jnp.pad(x, below)[:m], x, status.reshape(1)


def device_supports_vmm(device: SupportsIndex = 0) -> bool:
    """Returns whether a GPU has virtual memory management, which JAX's allocator "vmm" needs.

    The function asks the CUDA driver and initializes neither JAX nor a context on the GPU. It
    exists for compatibility with JAXMg 1.x; jaxmg doesn't use it.

    Args:
        device: CUDA's index of the GPU.

    Raises:
        RuntimeError: There is no CUDA driver or no such GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"device_supports_vmm: there is no CUDA driver: {error}") from error
    number, value = ctypes.c_int(), ctypes.c_int()
    ordinal = checks.index(device)
    for name, arguments in {
        "cuInit": (0,),
        "cuDeviceGet": (ctypes.byref(number), ordinal),
        "cuDeviceGetAttribute": (ctypes.byref(value), _VIRTUAL_MEMORY, number),
    }.items():
        if code := getattr(driver, name)(*arguments):
            raise RuntimeError(
                f"device_supports_vmm: {name} fails with CUDA's error {code} for GPU {ordinal}; "
                "check that nvidia-smi lists it"
            )
    return bool(value.value)
