"""What a routine is: the records `Option` and `Routine`, data without behaviour."""

import collections.abc
import dataclasses
import typing

from jaxmg._call import checks

# The first result, for callers inside jit who want A's memory back, with unspecified contents.
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
    """[A 0; 0 D], whose results contain those of A.

    Attributes:
        diagonal: the entries of the diagonal matrix D.
        applies: function of A's order that says whether the results do contain those of A.
        cut: function of (call, all results, A's order) that gives those of A; None: each result
            has them first.
        returns_matrix: whether the public function returns a matrix in A's memory, which takes
            memory of its own then.
    """

    diagonal: int = 1
    applies: collections.abc.Callable = lambda order: True
    cut: collections.abc.Callable | None = None
    returns_matrix: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Routine:
    """The record of a routine. `execute` runs it on global arrays, `local` inside a shard_map.

    Attributes:
        name: the name in errors.
        native: the plugin's name; after "jaxmg_" the FFI target.
        results: all results of the native code (`results.Result`), the matrix first.
        outputs, local_outputs, traced_outputs: the names of the results that the public function,
            its ``_shardmap_ctx`` and its ``_jit_ctx`` return, in order. A result whose argument is
            False is left out, and a single one is returned without a tuple. A routine without such
            a function has no outputs for it.
        operands: the arrays, the matrix first; a second one is right-hand sides or a matrix.
        matrices: how many operands, the first ones, are matrices that lie on the ranks by rows. The
            native code overwrites them: as many results, the first ones, are in their memory.
        options: arguments that become attributes.
        older: (argument, flag) for each argument of the ``_shardmap_ctx`` in whose position JAXMg
            0.0 had a flag: a bool there sets the flag.
        square: whether a matrix must be square, (n, n), where with ``pad=False`` the caller may
            have rows of padding below it; else it is (m, n).
        takes_m: whether the native code takes m beside n.
        exchanges: whether ``kernel`` exchanges rows for columns before the native code, so that no
            result is in the matrix's memory, and a factor is that of the transpose.
        triangle: the triangle that is read of a Hermitian matrix; None: all of a matrix is read,
            and it need not be Hermitian.
        overwrites: whether the native code overwrites the matrices, which XLA copies unless they
            are donated.
        native_alone: whether no backend but the engine has it.
        refines: whether its public function takes ``refine``.
        plans: whether `jaxmg.plan` takes it.
        extension: the `Extension` of A that an alignment may compute with; None: there is none.
        factor: the native routine whose plan has the tile width and the overflow of a factor in the
            engine's layout; "" for a routine that makes no factor.
        factor_dtypes: (dtype of A, dtype of the factor) pairs, where the two differ.
        kernel: function of (call, rank coordinates, *operands) that a rank runs and that returns
            all results; None: one native call.
        at_once: the `at_once.AtOnce` that computes many small matrices at once; None: there is
            none.
    """

    name: str
    native: str
    results: tuple
    outputs: tuple
    local_outputs: tuple = ()
    traced_outputs: tuple = ()
    operands: tuple = ("a",)
    matrices: int = 1
    options: tuple = ()
    older: tuple = ()
    square: bool = True
    takes_m: bool = False
    exchanges: bool = False
    triangle: str | None = "upper"
    overwrites: bool = True
    native_alone: bool = False
    refines: bool = False
    plans: bool = True
    extension: Extension | None = None
    factor: str = ""
    factor_dtypes: tuple = ()
    kernel: collections.abc.Callable | None = None
    at_once: typing.Any = None
