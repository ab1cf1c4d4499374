"""What a call of the native engine needs on a GPU beside A, by the formulas of docs/memory.md.

Left out are what cuSOLVER asks for and what cuBLAS keeps.
"""

import math

import numpy as np

USUAL_TILE, WIDEST_TILE = 1024, 2048  # CudaDevice::tuning
INVERTED_BLOCK = 128
PIECE = 8192  # kPiece in cuda_blas.cc


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
    usual = USUAL_TILE if ranks == 1 else min(USUAL_TILE, rows // 4)
    return min(max(usual, rows // 16, 32), WIDEST_TILE)


def needed(routine, dtype, n, ranks, T_A=None, nrhs=1, donate=False, rank=0):
    """Bytes that a call needs on GPU `rank`: workspace, results and a copy of A."""
    tiles = Tiles(n, ranks, T_A)
    T, m, rows = tiles.T, tiles.m, tiles.rows
    size = np.dtype(dtype).itemsize
    real = np.finfo(dtype).dtype.itemsize
    pieces = [
        size * (2 * n * T + 2 * m * T**2),  # two panels, and the rows of two that meet our tiles
        size * m * -(-T // INVERTED_BLOCK) * INVERTED_BLOCK**2,
        size * n * T * tiles.overflows,
        4 * (1 + ranks),
        real * (1 + ranks),
    ]
    apart = []  # each an allocation of its own
    if routine == "potrs":
        pieces.append(size * nrhs * m * T)
        apart.append(size * nrhs * n)
    elif routine == "potri":
        apart += [size * elements for elements in potri_scratch(tiles, rank)]
    elif routine == "syevd":
        pieces.append(size * n * n * (rank == 0))
        apart.append(real * n)
    else:
        raise ValueError(f"no formula for {routine}")
    copy = 0 if donate else size * rows * n
    return sum(256 * math.ceil(piece / 256) for piece in [*pieces, *apart, copy])


def potri_scratch(tiles, rank):
    """Elements of the pieces of memory that inverting the factor on `rank` takes one after the
    other: for the inverse of a diagonal tile, and beside it for a piece of a product."""
    taken = [0]
    for k in range(tiles.m * tiles.ranks):
        order = tiles.width(k)
        lengths = runs(tiles, rank, max(0, -(-(k - rank) // tiles.ranks)))
        wanted = [(order + min(length, PIECE)) * order for length in lengths if length >= 4 * order]
        if k % tiles.ranks == rank:
            wanted.append(order**2)
        for elements in wanted if order else ():
            if elements > taken[-1]:
                taken.append(elements)
    return taken[1:]


def runs(tiles, rank, slots):
    """The lengths of those of `rank`'s first tiles that lie side by side (Matrix::ForRuns)."""
    lengths, end = [], None
    for slot in range(slots):
        width = tiles.width(slot * tiles.ranks + rank)
        begin = None if tiles.overflows and slot == tiles.m - 1 else slot * tiles.T
        if begin is not None and begin == end:
            lengths[-1] += width
        else:
            lengths.append(width)
        end = None if begin is None else begin + width
    return lengths
