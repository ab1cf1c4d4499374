"""The sizes of the blocks and of the basis of block Lanczos (`iteration`)."""

import dataclasses
import math

import numpy as np

# A block has this many vectors more than pairs are wanted.
_GUARD = 2
# The least number of vectors in a block, for a matrix: a GPU multiplies it by this many in the time
# that it takes to read the matrix.
_LEAST = 8
# All eigenpairs are computed if the order is less than this many times the size of the basis: of a
# matrix, because that takes less time, and of an operator, because little else is left.
OF_MATRIX, OF_OPERATOR = 6, 2
# (largest block, number of blocks that a restart keeps). The basis has twice as many.
_BLOCKS = ((32, 6), (128, 4), (math.inf, 3))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of an iteration.

    Attributes:
        n: order of the matrix.
        k: number of pairs.
        block: number of vectors that the matrix multiplies at once.
        kept: number of blocks that a restart keeps, and that are added until the next one.
    """

    n: int
    k: int
    block: int
    kept: int

    @property
    def width(self):
        """The number of vectors that a restart keeps."""
        return self.kept * self.block

    @property
    def basis(self):
        """The number of vectors of the basis, without the next block."""
        return 2 * self.width

    def fits(self, times):
        """Whether the order is at least this many times the size of the basis."""
        return times * (self.basis + self.block) <= self.n


def choose(n, k, is_operator=False):
    """Returns the `Sizes` for k pairs.

    A block has more vectors than pairs are wanted, so that no eigenvalue of any multiplicity
    misses a vector. Operators multiply vectors one by one, as far as is known here.
    """
    block = k + _GUARD if is_operator else max(k + _GUARD, _LEAST)
    kept = next(blocks for most, blocks in _BLOCKS if block <= most)
    return Sizes(n, k, block, kept)


def iterations(sizes, maxiter):
    """Returns the largest number of products with a block, a multiple of `Sizes.kept`."""
    if maxiter is None:
        maxiter = min(max(10 * sizes.n // sizes.block, 100), 10_000)
    return sizes.kept * max(1, -(-maxiter // sizes.kept))


def tolerance(tol, dtype):
    """Returns the largest norm of a residual, relative to that of the matrix."""
    return max(float(tol), _ROUNDING * float(np.finfo(dtype).eps))


# Residuals of this many eps, relative to the norm of the matrix, count as rounding.
_ROUNDING = 32
