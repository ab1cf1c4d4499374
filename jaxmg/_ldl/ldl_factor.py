"""The record of the factorization: the engine's hetrf."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxmg._call import ffi, record, results
from jaxmg._call.arguments import collect
from jaxmg._ldl import factor as kept
from jaxmg._ldl import operations
from jaxmg._transform import dispatch


@dataclasses.dataclass(frozen=True)
class _Lower(results.TransposedTiles):
    """L in the engine's layout, whose tiles are all of full width."""

    def native(self, call, a, *b):
        n = a.shape[1]
        rows = operations.rows_of_rank(n, call.layout.ranks, call.tile)
        return jax.ShapeDtypeStruct((rows, n), a.dtype)


@dataclasses.dataclass(frozen=True)
class _Band(results.Vector):
    """A band of ``tiles`` tiles in each tile column: (n, tiles * tile).

    Attributes:
        tiles: their number.
    """

    tiles: int = 3

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct((a.shape[1], self.tiles * call.tile), a.dtype)

    def empty(self, a, *b, local):
        return jnp.zeros((0, self.tiles), a.dtype)


def _factor(call, coordinates, rows):
    n = rows.shape[1]
    return ffi.call(
        "jaxmg_hetrf", call.layout, call.tile, call.backend,
        (coordinates, rows, jnp.arange(n, dtype=jnp.int32)),
        tuple([result.native(call, rows) for result in call.routine.results]),
        in_place=0, differing=1, n=n, **dict(call.attributes),
    )  # fmt: skip


def _check_symmetry(routine, value, *_):
    return bool(value)


HETRF = record.Routine(
    name="linalg.ldl_factor",
    native="hetrf",
    results=(
        _Lower("tiles"),
        _Band("band"),
        _Band("band_lu", tiles=4),
        results.Pivots("pivots"),
        results.Pivots("band_pivots"),
        results.RealNumber("log_det"),
        results.Sign("sign"),
        results.Status(),
    ),
    outputs=(
        "tiles", "band", "band_lu", "pivots", "band_pivots", "log_det", "sign", "status",
    ),
    options=(record.PRECISION, record.Option("hermitian", "hermitian", _check_symmetry)),
    triangle=None,
    native_alone=True,
    plans=False,
    factor=record.Factor("hetrf"),
    kernel=_factor,
)  # fmt: skip


def factorize(a, hermitian, T_A=None, mesh=None, spec=None):
    """Factors a Hermitian or symmetric matrix, of which both triangles are read."""
    arguments = collect(
        HETRF, T_A, mesh, spec, None, True, "native", precision=None, hermitian=hermitian
    )
    return dispatch.call(HETRF, (a,), arguments, _rule, pack=kept.pack)


def _rule(arguments):
    """JVP rule: the tangent of the factor holds dA."""

    def derivative(primals, tangents):
        factor = dispatch.transform(HETRF, primals, arguments, _rule, kept.pack)
        return factor, operations.tangent(factor, tangents[0])

    return derivative
