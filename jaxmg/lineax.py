"""`Cholesky`, `LU` and `QR`: lineax solvers for matrices spread over several devices.

This module needs lineax (``pip install "jaxmg[lineax]>=2"``); no other module of this package
imports it.
"""

# pyright: reportMissingImports=false

import dataclasses
import itertools
from typing import Any, SupportsIndex

import equinox
import jax
import jax.flatten_util
import jax.numpy as jnp
import lineax
from jax.sharding import PartitionSpec

from jaxmg import CholeskyFactor, LUFactor, QRFactor, cho_factor, cho_solve, geqrf, lu_factor
from jaxmg._types import MeshLike, PrecisionLike

__all__ = ["LU", "QR", "Cholesky"]


class _OnMesh(equinox.Module):
    """The mesh and the options with which a solver factors a matrix."""

    mesh: MeshLike | None = equinox.field(default=None, static=True)
    matrix_specs: PartitionSpec | None = equinox.field(default=None, static=True)
    T_A: SupportsIndex | None = equinox.field(default=None, static=True)
    precision: PrecisionLike | None = equinox.field(default=None, static=True)
    in_specs: PartitionSpec | None = equinox.field(default=None, static=True)

    def _factor(self, make, matrix):
        return make(
            matrix, self.T_A, self.mesh, self.matrix_specs, precision=self.precision,
            in_specs=self.in_specs,
        )  # fmt: skip


def _result(is_regular):
    results = lineax.RESULTS
    return results.where(is_regular, results.successful, results.singular)


class _State(equinox.Module):
    """A factor of the operator, or of its negative."""

    factor: CholeskyFactor
    negative: bool = equinox.field(static=True)


class Cholesky(_OnMesh, lineax.Cholesky):
    """Solves as `lineax.Cholesky`, with a factor from `jaxmg.cho_factor` on the matrix's devices.

    The operator must be square, tagged as positive or negative semidefinite, and in fact definite.
    Its matrix (``operator.as_matrix()``) may be sharded in any way; only the upper triangle is
    read. The factor stays spread over the devices, also in the state. Derivatives, which lineax
    defines, reuse the factor.

    ``lineax.linear_solve`` traces its arguments, which hides the matrix's mesh. Pass ``mesh``, pass
    the state ``solver.init(operator, options={})``, or set a context mesh.

    Attributes:
        mesh, matrix_specs, T_A, precision, in_specs: As in `jaxmg.cho_factor`.

    Failure: if the matrix isn't definite, the result is ``lineax.RESULTS.singular`` and the
    solution is NaN.

    Raises:
        ValueError: the operator has neither tag. Errors of `jaxmg.cho_factor` are raised too.

    Examples:
        >>> operator = lineax.MatrixLinearOperator(a, lineax.positive_semidefinite_tag)
        >>> x = lineax.linear_solve(operator, b, jaxmg.lineax.Cholesky(mesh)).value
    """

    def init(self, operator: lineax.AbstractLinearOperator, options: dict[str, Any]) -> _State:
        """Factors the operator's matrix; ``options`` is ignored."""
        del options
        negative = lineax.is_negative_semidefinite(operator)
        if not (negative or lineax.is_positive_semidefinite(operator)):
            raise ValueError(
                "jaxmg.lineax.Cholesky: the operator must be positive or negative definite; tag it "
                "with lineax.positive_semidefinite_tag or lineax.negative_semidefinite_tag"
            )
        matrix = operator.as_matrix()
        factor = self._factor(cho_factor, -matrix if negative else matrix)
        return _State(factor, bool(negative))

    def compute(
        self, state: _State, vector: Any, options: dict[str, Any]
    ) -> tuple[Any, lineax.RESULTS, dict[str, Any]]:
        """Solves with the factor; ``options`` is ignored."""
        del options
        b, restore = jax.flatten_util.ravel_pytree(vector)
        x = cho_solve(state.factor, b)
        return restore(-x if state.negative else x), _result(state.factor.status == 0), {}

    def transpose(self, state: _State, options: dict[str, Any]) -> tuple[_State, dict[str, Any]]:
        """Returns the state of the transpose: that of `conj`, because A is Hermitian."""
        return self.conj(state, options)

    def conj(self, state: _State, options: dict[str, Any]) -> tuple[_State, dict[str, Any]]:
        """Returns the state of the conjugate operator, with the conjugate factor."""
        factor = state.factor
        overflow = None if factor.overflow is None else jnp.conj(factor.overflow)
        factor = dataclasses.replace(factor, tiles=jnp.conj(factor.tiles), overflow=overflow)
        return _State(factor, state.negative), options

    def assume_full_rank(self) -> bool:
        """Returns True: a definite operator has full rank."""
        return True


class _GeneralState(equinox.Module):
    """A factor of the operator's matrix, its transpose, its conjugate or its adjoint.

    Attributes:
        is_regular: whether solutions are finite, as far as the factor tells.
        structures: (in, out) structures of the operator.
    """

    factor: LUFactor | QRFactor
    is_regular: jax.Array
    structures: tuple[Any, Any] = equinox.field(static=True)
    transposed: bool = equinox.field(default=False, static=True)
    conjugated: bool = equinox.field(default=False, static=True)


class _General(_OnMesh):
    """The methods that `LU` and `QR` share."""

    def compute(
        self, state: _GeneralState, vector: Any, options: dict[str, Any]
    ) -> tuple[Any, lineax.RESULTS, dict[str, Any]]:
        """Solves with the factor; ``options`` is ignored."""
        del options
        dtype, leaves = state.factor.dtype, jax.tree.leaves(vector)
        b = jnp.concatenate([leaf.astype(dtype).reshape(-1) for leaf in leaves])
        if state.conjugated and not state.transposed:
            x = jnp.conj(state.factor.solve(jnp.conj(b)))
        else:
            x = state.factor.solve(b, _OPERATIONS[state.transposed, state.conjugated])
        return _unravel(x, state.structures[0]), _result(state.is_regular), {}

    def transpose(
        self, state: _GeneralState, options: dict[str, Any]
    ) -> tuple[_GeneralState, dict[str, Any]]:
        """Returns the state of the transposed operator, with the same factor."""
        state = dataclasses.replace(
            state, transposed=not state.transposed, structures=state.structures[::-1]
        )
        return state, options

    def conj(
        self, state: _GeneralState, options: dict[str, Any]
    ) -> tuple[_GeneralState, dict[str, Any]]:
        """Returns the state of the conjugate operator, with the same factor."""
        return dataclasses.replace(state, conjugated=not state.conjugated), options

    def assume_full_rank(self) -> bool:
        """Returns True."""
        return True


# (transposed, conjugated) -> ``trans`` of the factor's `solve`.
_OPERATIONS: dict[tuple[bool, bool], Any] = {
    (False, False): "N",
    (True, False): "T",
    (True, True): "C",
}


def _unravel(x, structure):
    """Splits a vector into leaves of their own shapes and dtypes."""
    leaves, tree = jax.tree.flatten(structure)
    ends = itertools.accumulate(leaf.size for leaf in leaves[:-1])
    parts = zip(jnp.split(x, list(ends)), leaves, strict=True)
    return jax.tree.unflatten(
        tree,
        [
            (part if jnp.iscomplexobj(leaf) else part.real).reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in parts
        ],
    )


def _structures(operator):
    return operator.in_structure(), operator.out_structure()


class LU(_General, lineax.LU):
    """Solves as `lineax.LU`, with a factor from `jaxmg.lu_factor` on the matrix's devices.

    The operator must be square. Its matrix may be sharded in any way. The factor stays spread over
    the devices, also in the state. Mesh and attributes are as for `Cholesky`.

    Failure: if the matrix is singular, the result is ``lineax.RESULTS.singular``.

    Raises:
        ValueError: the operator isn't square. Errors of `jaxmg.lu_factor` are raised too.

    Examples:
        >>> operator = lineax.MatrixLinearOperator(a)
        >>> x = lineax.linear_solve(operator, b, jaxmg.lineax.LU(mesh)).value
    """

    def init(self, operator: lineax.AbstractLinearOperator, options: dict[str, Any]) -> Any:
        """Factors the operator's matrix; ``options`` is ignored."""
        del options
        if operator.in_size() != operator.out_size():
            raise ValueError(
                "jaxmg.lineax.LU: the operator must be square; it maps vectors of "
                f"{operator.in_size()} entries to vectors of {operator.out_size()}. "
                "jaxmg.lineax.QR solves least squares"
            )
        factor = self._factor(lu_factor, operator.as_matrix())
        return _GeneralState(factor, factor.status == 0, _structures(operator))


class QR(_General, lineax.QR):
    """Solves as `lineax.QR`, with a factor from `jaxmg.geqrf` on the matrix's devices.

    The operator may have any shape and must have full rank. The solution is the least-squares
    solution, or the one of least norm if the operator has more columns than rows. Such a wide
    matrix is transposed in an exchange between all devices. Mesh and attributes are as for
    `Cholesky`.

    Failure: if a diagonal entry of R is 0, or the matrix has NaN or infinity, the result is
    ``lineax.RESULTS.singular``.

    Raises:
        TypeError, ValueError, RuntimeError: as `jaxmg.geqrf`.

    Examples:
        >>> operator = lineax.MatrixLinearOperator(a)
        >>> x = lineax.linear_solve(operator, b, jaxmg.lineax.QR(mesh)).value
    """

    def init(self, operator: lineax.AbstractLinearOperator, options: dict[str, Any]) -> Any:
        """Factors the operator's matrix or its transpose; ``options`` is ignored."""
        del options
        matrix = operator.as_matrix()
        is_wide = matrix.shape[0] < matrix.shape[1]
        factor = self._factor(geqrf, matrix.T if is_wide else matrix)
        is_regular = (factor.status == 0) & jnp.all(factor.diagonal() != 0)
        return _GeneralState(factor, is_regular, _structures(operator), is_wide)
