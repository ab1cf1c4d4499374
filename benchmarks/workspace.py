"""What a call of the native engine needs on a GPU beside A, by the formulas of docs/memory.md.

Left out are what cuSOLVER asks for and what cuBLAS keeps.
"""

import math

import numpy as np

# CudaDevice::tuning
USUAL_TILE = 1024
UPDATE_DEPTH = 2048


class Tiles:
    """How the columns are cut (xla_ffi/layout/tiles.h): m tiles a rank, T wide but for the last."""

    def __init__(self, n, ranks, T_A=None):
        self.n, self.ranks, self.rows = n, ranks, -(-n // ranks)
        width = min(T_A or default_tile(self.rows, ranks), self.rows)
        self.m = -(-self.rows // width)
        self.T = -(-self.rows // self.m)
        self.overflows = ranks > 1 and self.m * self.T > self.rows

    def offset(self, p):
        rank, tile = divmod(p, self.m)
        return min(rank * self.rows + tile * self.T, self.n) if rank < self.ranks else self.n

    def width(self, p):
        return self.offset(p + 1) - self.offset(p)


def default_tile(rows, ranks):
    return USUAL_TILE if ranks == 1 else min(max(rows, 32), USUAL_TILE)


def needed(routine, dtype, n, ranks, T_A=None, nrhs=1, donate=False, rank=0):
    """Bytes that a call needs on GPU `rank`: workspace, results and a copy of A."""
    tiles = Tiles(n, ranks, T_A)
    T, m, rows = tiles.T, tiles.m, tiles.rows
    size = np.dtype(dtype).itemsize
    real = np.finfo(dtype).dtype.itemsize
    factorized = routine in ("potrs", "potri")
    panels = 2 * max(UPDATE_DEPTH // T, 1)
    pieces = [
        # Panels, and those of their rows that meet our tiles.
        size * panels * (n * T + m * T**2) if factorized else size * n * T,
        size * n * T * tiles.overflows,
        4 * (1 + ranks),
        real * (1 + ranks),
    ]
    apart = []  # each an allocation of its own
    if routine == "potrs":
        pieces.append(size * nrhs * m * T)
        apart.append(size * nrhs * n)
    elif routine == "syevd":
        pieces.append(size * n * n * (rank == 0))
        apart.append(real * n)
    elif routine != "potri":
        raise ValueError(f"no formula for {routine}")
    copy = 0 if donate else size * rows * n
    return sum(256 * math.ceil(piece / 256) for piece in [*pieces, *apart, copy])
