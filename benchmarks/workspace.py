"""What a call of the native engine needs on a GPU beside A, by the formulas of docs/memory.md.

Left out are what cuSOLVER asks for and what cuBLAS keeps.
"""

import math

import numpy as np
import problems

# CudaDevice::tuning
USUAL_TILE = 1024
UPDATE_DEPTH = 2048
# Orders, of real dtypes, up to which one GPU factors as a single tile, and up to which several GPUs
# leave it to one of them.
WHOLE_ORDER = 12288
GATHER = {"potrs": 7168, "potri": 1024}
COMPLEX = 3 / 5  # of an order that is for real dtypes, except for potri's


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


def order(routine, dtype, real):
    """A limit of the tuning, for a dtype."""
    complex_ = np.dtype(dtype).kind == "c" and routine == "potrs"
    return int(real * COMPLEX) if complex_ else real


def gathers(routine, dtype, n, ranks, T_A):
    """Whether one of several GPUs does it all."""
    if T_A or ranks == 1 or routine not in GATHER:
        return False
    return n <= order(routine, dtype, GATHER[routine])


def tiles(routine, dtype, n, ranks, T_A=None):
    """Of the matrix as it is worked on."""
    ranks = 1 if gathers(routine, dtype, n, ranks, T_A) else ranks
    if not T_A and ranks == 1 and routine == "potrs":
        T_A = n if n <= order(routine, dtype, WHOLE_ORDER) else None
    return Tiles(n, ranks, T_A)


def needed(routine, dtype, n, ranks, T_A=None, nrhs=1, donate=False, rank=0):
    """Bytes that a call needs on GPU `rank`: workspace, results and a copy of A."""
    if routine not in problems.ROUTINES:
        raise ValueError(f"no formula for {routine}")
    cut = tiles(routine, dtype, n, ranks, T_A)
    gathered = gathers(routine, dtype, n, ranks, T_A)
    T, m, rows = cut.T, cut.m, -(-n // ranks)
    size = np.dtype(dtype).itemsize
    real = np.finfo(dtype).dtype.itemsize
    tile_columns = n * T * (cut.ranks > 1)  # for exchanges
    if routine != "syevd" and n > T:
        # Panels, and those of their rows that meet our tiles.
        tile_columns = 2 * max(UPDATE_DEPTH // T, 1) * (n * T + m * T**2)
    if routine == "potri":
        tile_columns = max(tile_columns, (2 * n + T) * T)
    works = not gathered or rank == 0
    pieces = [
        size * tile_columns * works,
        size * n * T * (cut.overflows and works),
        size * n * n * (rank == 0 and (gathered or routine == "syevd")),
        16 * (1 + ranks),
    ]
    apart = []  # each an allocation of its own
    if routine == "potrs":
        pieces.append(size * nrhs * m * T * works)
        apart.append(size * nrhs * n)
    elif routine == "syevd":
        apart.append(real * n)
    copy = 0 if donate else size * rows * n
    return sum(256 * math.ceil(piece / 256) for piece in [*pieces, *apart, copy])
