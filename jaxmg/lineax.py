"""`Cholesky`, a solver of lineax for matrices spread over several devices.

It needs lineax (``pip install jaxmg[lineax]``), which nothing else in this package imports.
"""

# pyright: reportMissingImports=false

import dataclasses
from typing import Any, SupportsIndex

import equinox
import jax.flatten_util
import jax.numpy as jnp
import lineax
from jax.sharding import PartitionSpec

from jaxmg import CholeskyFactor, cho_factor, cho_solve
from jaxmg._types import MeshLike, PrecisionLike

__all__ = ["Cholesky"]


class _State(equinox.Module):
    """A factor of the operator, or of its negative."""

    factor: CholeskyFactor
    negative: bool = equinox.field(static=True)


class Cholesky(lineax.AbstractLinearSolver):
    """`lineax.Cholesky` on the devices that hold the operator's matrix: `jaxmg.cho_factor`.

    The operator is square and tagged as positive or as negative semidefinite, and definite. Its
    matrix (``operator.as_matrix()``) may be sharded in any way; of it the upper triangle is read.
    The factor stays spread over the devices, in the state too, and serves derivatives, which lineax
    takes.

    ``lineax.linear_solve`` traces what it is given, so that the matrix's mesh can't be seen there:
    pass ``mesh``, or the state, ``solver.init(operator, options={})``, or set a context mesh.

    Attributes:
        mesh, matrix_specs, T_A, precision: as for `jaxmg.cho_factor`.

    Failure: where the matrix isn't definite the result is ``lineax.RESULTS.singular``, and the
    solution NaN.

    Raises:
        ValueError: the operator has no such tag; and all that `jaxmg.cho_factor` raises.

    Examples:
        >>> operator = lineax.MatrixLinearOperator(a, lineax.positive_semidefinite_tag)
        >>> x = lineax.linear_solve(operator, b, jaxmg.lineax.Cholesky(mesh)).value
    """

    mesh: MeshLike | None = equinox.field(default=None, static=True)
    matrix_specs: PartitionSpec | None = equinox.field(default=None, static=True)
    T_A: SupportsIndex | None = equinox.field(default=None, static=True)
    precision: PrecisionLike | None = equinox.field(default=None, static=True)

    def init(self, operator: lineax.AbstractLinearOperator, options: dict[str, Any]) -> _State:
        """Factors the operator's matrix; ``options`` has none."""
        del options
        negative = lineax.is_negative_semidefinite(operator)
        if not (negative or lineax.is_positive_semidefinite(operator)):
            raise ValueError(
                "jaxmg.lineax.Cholesky: the operator must be positive or negative definite; tag it "
                "with lineax.positive_semidefinite_tag or lineax.negative_semidefinite_tag"
            )
        matrix = operator.as_matrix()
        factor = cho_factor(
            -matrix if negative else matrix, self.T_A, self.mesh, self.matrix_specs,
            precision=self.precision,
        )  # fmt: skip
        return _State(factor, bool(negative))

    def compute(
        self, state: _State, vector: Any, options: dict[str, Any]
    ) -> tuple[Any, lineax.RESULTS, dict[str, Any]]:
        """Solves with the factor; ``options`` has none."""
        del options
        b, restore = jax.flatten_util.ravel_pytree(vector)
        x = cho_solve(state.factor, b)
        definite = state.factor.status == 0
        results = lineax.RESULTS
        result = results.where(definite, results.successful, results.singular)
        return restore(-x if state.negative else x), result, {}

    def transpose(self, state: _State, options: dict[str, Any]) -> tuple[_State, dict[str, Any]]:
        """Of a Hermitian operator the transpose is the conjugate."""
        return self.conj(state, options)

    def conj(self, state: _State, options: dict[str, Any]) -> tuple[_State, dict[str, Any]]:
        """The state of the conjugate operator: the factor's conjugate."""
        factor = state.factor
        overflow = None if factor.overflow is None else jnp.conj(factor.overflow)
        factor = dataclasses.replace(factor, tiles=jnp.conj(factor.tiles), overflow=overflow)
        return _State(factor, state.negative), options

    def assume_full_rank(self) -> bool:
        """Yes: of a definite operator."""
        return True
