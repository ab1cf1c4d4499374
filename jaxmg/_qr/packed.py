"""Creation of a QR factor from LAPACK's Householder vectors: the routine's record, and the work of
a rank.

In addition to the vectors the factor has T of each panel of 64 reflectors. T is the inverse of the
triangle with 1 / tau on its diagonal and V^H V above it (C. Puglisi, SIAM J. Sci. Stat. Comput. 13,
1992). A panel lies within a tile, and a tile within a rank's columns, so each rank has its panels
whole.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import blocks, checks, ffi, record, results

PANEL = 64


def _from_packed(call, coordinates, rows):
    """Returns (tiles, overflow, V^H V of panels, status) from a rank's rows of ``h``."""
    (m, n), layout = call.shape, call.layout
    rank = coordinates.reshape(2)[0]
    rows = ffi.after_meeting(ffi.meet(layout, coordinates, rows), rows)
    columns = blocks.transposed_rows(rows, layout, m, rank)
    finite = jnp.all(jnp.isfinite(columns)).astype(jnp.int32)
    if layout.ranks > 1:
        finite = jax.lax.pmin(finite, layout.rows)
    status = finite - 1
    columns = jnp.where(status < 0, jnp.nan, columns)
    grams = _grams(columns, rank * len(columns), min(m, n), call.tile)
    if layout.ranks > 1:
        grams = jax.lax.all_gather(grams, layout.rows, tiled=True)
    tiles, overflow = ffi.call(
        f"jaxmg_{call.routine.native}", layout, call.tile, call.backend, (coordinates, columns),
        tuple(result.native(call, columns) for result in call.routine.results[:2]),
        differing=2, m=n, n=m,
    )  # fmt: skip
    return tiles, overflow, grams[: min(m, n)], status[None]


def _panels(count, tile):
    """Returns (panel, index in it) for each of a rank's ``count`` columns, which form tiles."""
    within = np.arange(count) % tile
    starts = within % PANEL == 0
    return np.cumsum(starts) - 1, within % PANEL


def _grams(columns, first, reflectors, tile):
    """Returns the strict upper triangles of V^H V of all panels; column j is reflector j's."""
    count, m = columns.shape
    index = first + jnp.arange(count)[:, None]
    row = jnp.arange(m)[None]
    v = jnp.where(row > index, columns, (row == index).astype(columns.dtype))
    v = jnp.where(index < reflectors, v, 0)
    panel, place = _panels(count, tile)
    members = np.full((panel.max(initial=-1) + 1, PANEL), count)
    members[panel, place] = np.arange(count)
    v = jnp.concatenate([v, jnp.zeros((1, m), v.dtype)])[members]
    product = jax.lax.dot_general(
        v.conj(), v, (((2,), (2,)), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST
    )
    return jnp.triu(product, 1)[panel, :, place]


FROM_PACKED = record.Routine(
    name="QRFactor.from_packed",
    native="lu_tiles",
    operands=(record.Operand("h"),),
    square=False,
    triangle=None,
    native_alone=True,
    plans=False,
    results=(
        results.TransposedTiles("tiles"),
        results.Overflow("overflow"),
        results.PanelFactors("grams"),
        results.Status(),
    ),
    outputs=("tiles", "overflow", "grams", "status"),
    factor=record.Factor("geqrf"),
    kernel=_from_packed,
)


def panel_factors(grams, taus, ranks, columns, tile):
    """Returns the T factors of all panels of a matrix with this number of columns, from the
    products V^H V (`_grams`)."""
    return _panel_factors(ranks, columns, tile)(grams, taus)


@functools.lru_cache(maxsize=512)
def _panel_factors(ranks, columns, tile):
    count = -(-columns // ranks)
    panel, place = _panels(count, tile)
    panels = panel.max(initial=-1) + 1
    panel = (np.arange(ranks)[:, None] * panels + panel).ravel()
    place = np.tile(place, ranks)

    @jax.jit
    def run(grams, taus):
        k = len(taus)
        here, at = panel[:k], place[:k]
        there = jnp.zeros((ranks * panels, PANEL), bool).at[here, at].set(taus != 0)
        scale = jnp.where(taus != 0, 1 / jnp.where(taus != 0, taus, 1), 1)
        diagonal = jnp.ones((ranks * panels, PANEL), taus.dtype).at[here, at].set(scale)
        above = jnp.zeros((ranks * panels, PANEL, PANEL), taus.dtype).at[here, :, at].set(grams)
        both = there[:, :, None] & there[:, None]
        triangle = jnp.where(both, above, 0) + diagonal[:, :, None] * jnp.eye(
            PANEL, dtype=taus.dtype
        )
        eye = jnp.broadcast_to(jnp.eye(PANEL, dtype=taus.dtype), triangle.shape)
        t = jax.lax.linalg.triangular_solve(triangle, eye, left_side=True, lower=False)
        return jnp.where(both, t, 0)[here, :, at]

    return run


def check_taus(routine, taus, h):
    """Raises unless ``taus`` match a matrix such as ``h``."""
    checks.array(routine, "taus", taus, checks.ALL)
    k = min(h.shape[-2:])
    if taus.shape[-1:] != (k,) or taus.dtype != h.dtype:
        raise ValueError(
            f"{routine}: taus must be ({k},), of h's dtype {h.dtype}; they have shape "
            f"{tuple(taus.shape)} and dtype {taus.dtype}"
        )
