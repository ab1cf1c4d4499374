"""Appends and removes rows of zeros, for code that pads by hand. The routines need no padding."""

from __future__ import annotations

from typing import Any, SupportsIndex, TypeVar, overload

import jax.numpy as jnp
from jax import Array
from numpy.typing import NDArray

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._types import AnyArray

_A = TypeVar("_A", Array, NDArray[Any])


@_compat.api_boundary
def calculate_padding(shard_size: SupportsIndex, T_A: SupportsIndex) -> int:
    """Counts the rows missing to the next multiple of the tile width: ``(-shard_size) % T_A``.

    Args:
        shard_size: Number of rows of one shard, at least 0.
        T_A: Tile width, at least 1.

    Examples:
        >>> calculate_padding(10, 4)
        2
    """
    size = checks.non_negative("calculate_padding", "shard_size", shard_size)
    return -size % checks.positive("calculate_padding", "T_A", T_A)


@overload
def pad_rows(a: Array, padding: SupportsIndex) -> Array: ...


@overload
def pad_rows(a: NDArray[Any], padding: SupportsIndex) -> AnyArray: ...


@_compat.api_boundary
def pad_rows(a: AnyArray, padding: SupportsIndex) -> AnyArray:
    """Appends ``padding`` rows of zeros to ``a``.

    Args:
        a: (rows, ...), any dtype; a local block inside ``shard_map``, or a global array.
        padding: Number of rows, at least 0; 0 returns ``a`` unchanged.

    Returns:
        (rows + padding, ...), of a's dtype.
    """
    checks.usable("pad_rows", "a", a)
    padding = checks.non_negative("pad_rows", "padding", padding)
    if padding == 0:
        return a
    return jnp.pad(a, ((0, padding),) + ((0, 0),) * (a.ndim - 1))


@_compat.api_boundary
def unpad_rows(a: _A, padding: SupportsIndex) -> _A:
    """Removes the last ``padding`` rows of ``a``: the inverse of `pad_rows`.

    Args:
        a: (rows, ...), any dtype; a local block inside ``shard_map``, or a global array.
        padding: Number of rows, from 0 to rows; 0 returns ``a`` unchanged.

    Returns:
        (rows - padding, ...), of a's dtype.
    """
    checks.usable("unpad_rows", "a", a)
    padding = checks.non_negative("unpad_rows", "padding", padding)
    if padding > a.shape[0]:
        raise ValueError(f"unpad_rows: padding is {padding}, but a has only {a.shape[0]} rows")
    return a[: a.shape[0] - padding] if padding else a
