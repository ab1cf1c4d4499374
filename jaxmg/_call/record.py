"""The records that describe a routine, `Routine` and its parts: data without behaviour."""

import collections.abc
import dataclasses
import functools

from jaxmg._call import checks

# The first result: A's memory with unspecified contents, for callers inside jit who reuse it.
WORK = "a_work"
# The second result of a routine of two matrices: B's memory.
SECOND_WORK = "b_work"


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that a routine takes.

    Attributes:
        name: the argument of the public function.
        is_matrix: whether the array is a matrix, which lies on the ranks by rows and which the
            native code overwrites. Otherwise it is right-hand sides, equal on all ranks.
    """

    name: str
    is_matrix: bool = True


MATRIX = Operand("a")
SECOND_MATRIX = Operand("b")
RIGHT_HAND_SIDES = Operand("b", is_matrix=False)


@dataclasses.dataclass(frozen=True)
class Factor:
    """The factor that a routine makes, in the engine's layout.

    Attributes:
        native: the native routine whose plan gives the tile width and the overflow.
        dtypes: (dtype of A, dtype of the factor) pairs, if the two differ.
    """

    native: str
    dtypes: tuple = ()


@dataclasses.dataclass(frozen=True)
class Option:
    """An argument that changes what the native code computes.

    Attributes:
        name: the argument of the public function.
        attribute: the handler's attribute, an integer.
        check: function of (routine, value, dtype of A, resolved backend, platform) that raises if
            the value is invalid, and returns the attribute's value.
    """

    name: str
    attribute: str
    check: collections.abc.Callable


PRECISION = Option("precision", "products", checks.precision)


@dataclasses.dataclass(frozen=True)
class Extension:
    """[A 0; 0 D], whose results contain the results for A.

    Attributes:
        diagonal: the entries of the diagonal matrix D.
        applies: function of (platform, A's order) that returns whether the results do contain
            those for A.
        cut: function of (call, all results, A's order) that returns the results for A; None:
            `Result.cut` does so for each result.
        returns_matrix: whether the public function returns a matrix in A's memory. For an extended
            A, this matrix takes memory of its own.
    """

    diagonal: int = 1
    applies: collections.abc.Callable = lambda platform, order: True
    cut: collections.abc.Callable | None = None
    returns_matrix: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Routine:
    """The record of a routine. `execute` runs it, on global arrays and inside a shard_map.

    Attributes:
        name: the name in errors.
        native: the plugin's name for the routine; the FFI target is "jaxmg_" and this name.
        results: all results of the native code (`results.Result`), the matrix first.
        outputs: the names of the results that the public function returns, in order, and its
            ``_shardmap_ctx`` inside a shard_map. A result whose argument is False is left out; a
            single result is returned without a tuple.
        traced_outputs: the names of the results that ``_shardmap_ctx`` returns outside of a
            shard_map; empty if the routine has no such function.
        operands: the `Operand` of each array, matrices first. The first results are in the memory
            of the matrices.
        options: arguments that become attributes.
        square: whether a matrix must be square, (n, n); with ``pad=False`` the caller may then have
            rows of padding below it. Otherwise it is (m, n).
        triangle: the triangle of a Hermitian matrix that is read; None: the whole matrix is read,
            and need not be Hermitian.
        native_alone: whether only the backend "native" has it.
        refines: whether its public function takes ``refine``.
        plans: whether `jaxmg.plan` accepts the routine.
        extension: the `Extension` of A that `alignment` may use; None: A is never extended.
        factor: the `Factor` that the routine makes; None if it makes none.
        kernel: function of (call, rank coordinates, *operands) that a rank runs and that returns
            all results; None: one native call, `execute.call_native`.
        whole: whether the last rank of several CPU devices does the call for all, up to order
            `by_one.MOST`.
        at_once: the `choice.Operation` for many small matrices, alone in a tuple; empty if there is
            none. A routine of eigenvectors has two, the second without eigenvectors.
    """

    name: str
    native: str
    results: tuple
    outputs: tuple
    traced_outputs: tuple = ()
    operands: tuple = (MATRIX,)
    options: tuple = ()
    square: bool = True
    triangle: str | None = "upper"
    native_alone: bool = False
    refines: bool = False
    plans: bool = True
    extension: Extension | None = None
    factor: Factor | None = None
    kernel: collections.abc.Callable | None = None
    whole: bool = False
    at_once: tuple = ()

    @functools.cached_property
    def names(self):
        """The names of the operands."""
        return tuple([operand.name for operand in self.operands])

    @functools.cached_property
    def matrices(self):
        """The number of operands that are matrices."""
        return sum([operand.is_matrix for operand in self.operands])
