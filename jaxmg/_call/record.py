"""The records that describe a routine: `Option`, `Extension` and `Routine`, data without
behaviour."""

import collections.abc
import dataclasses

from jaxmg._call import checks

# The first result: A's memory with unspecified contents, for callers inside jit who reuse it.
WORK = "a_work"
# The second result of a routine of two matrices: B's memory.
SECOND_WORK = "b_work"


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
        outputs, traced_outputs: the names of the results that the public function returns, as its
            ``_shardmap_ctx`` does inside a shard_map, and those that this returns outside, in
            order; empty if the routine has no such function. A result whose argument is False is
            left out, and a single one is returned without a tuple.
        operands: the arrays, the matrix first; a second one is right-hand sides or a matrix.
        matrices: the number of leading operands that are matrices, which lie on the ranks by rows.
            The native code overwrites them: the same number of leading results are in their memory.
        options: arguments that become attributes.
        older: (argument, flag) pairs. In the position of this argument of the ``_shardmap_ctx``,
            JAXMg 0.0 had the flag: a bool there sets the flag.
        square: whether a matrix must be square, (n, n); with ``pad=False`` the caller may then have
            rows of padding below it. Otherwise it is (m, n).
        takes_m: whether the native code takes m in addition to n.
        exchanges: whether ``kernel`` exchanges rows for columns before the native code. Then no
            result is in the matrix's memory, and a factor is a factor of the transpose.
        triangle: the triangle of a Hermitian matrix that is read; None: the whole matrix is read,
            and need not be Hermitian.
        native_alone: whether only the backend "native" has it.
        refines: whether its public function takes ``refine``.
        plans: whether `jaxmg.plan` accepts the routine.
        extension: the `Extension` of A that `alignment` may use; None: A is never extended.
        factor: the native routine whose plan gives the tile width and the overflow of a factor in
            the engine's layout; "" for a routine that makes no factor.
        factor_dtypes: (dtype of A, dtype of the factor) pairs, if the two differ.
        kernel: function of (call, rank coordinates, *operands) that a rank runs and that returns
            all results; None: one native call.
        whole: whether the last rank of several CPU devices does the call for all, up to order
            `by_one.MOST`.
        at_once: the `choice.Operation` that computes many small matrices at once, if there is one;
            the last one does so if eigenvectors are not wanted.
    """

    name: str
    native: str
    results: tuple
    outputs: tuple
    traced_outputs: tuple = ()
    operands: tuple = ("a",)
    matrices: int = 1
    options: tuple = ()
    older: tuple = ()
    square: bool = True
    takes_m: bool = False
    exchanges: bool = False
    triangle: str | None = "upper"
    native_alone: bool = False
    refines: bool = False
    plans: bool = True
    extension: Extension | None = None
    factor: str = ""
    factor_dtypes: tuple = ()
    kernel: collections.abc.Callable | None = None
    whole: bool = False
    at_once: tuple = ()
