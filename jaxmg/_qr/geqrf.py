"""QR decomposition of any matrix for repeated use: LAPACK's geqrf."""

from __future__ import annotations

import dataclasses
from typing import SupportsIndex

from jaxmg import _compat
from jaxmg._call import blocks, execute, ffi, record, results
from jaxmg._call.arguments import collect
from jaxmg._layouts import shardings
from jaxmg._qr import factor as qr_factor
from jaxmg._qr import rectangular
from jaxmg._transform import derivatives, dispatch
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike, Specs


def _exchange_and_factor(call, coordinates, rows):
    """Exchanges a rank's rows of A for its rows of A^T, and runs geqrf on these."""
    (m, n), layout = call.shape, call.layout
    rows = ffi.after_meeting(ffi.meet(layout, coordinates, rows), rows)
    columns = blocks.transposed_rows(rows, layout, m, coordinates.reshape(2)[0])
    return ffi.call(
        f"jaxmg_{call.routine.native}", layout, call.tile, call.backend, (coordinates, columns),
        tuple(result.native(call, columns) for result in call.routine.results),
        differing=2, m=n, n=m, **dict(call.attributes),
    )  # fmt: skip


def _factor(call, coordinates, rows):
    """Runs geqrf on a rank's rows of A, which are columns of A^T."""
    return execute.call_native(call, coordinates, rows, m=call.shape[0])


_OTHER_RESULTS = (
    results.Overflow("overflow"),
    results.Diagonal("taus"),
    results.PanelFactors("factors"),
    results.Status(),
)

GEQRF = record.Routine(
    name="geqrf",
    native="geqrf",
    results=(results.TransposedTiles("tiles"), *_OTHER_RESULTS),
    outputs=("tiles", "overflow", "taus", "factors", "status"),
    options=(record.PRECISION,),
    square=False,
    triangle=None,
    native_alone=True,
    factor=record.Factor("geqrf"),
    kernel=_exchange_and_factor,
)

# QR of A^T. A rank's rows of A are columns of A^T, as the native code needs them: no exchange.
TRANSPOSED = dataclasses.replace(
    GEQRF, results=(results.Tiles("tiles"), *_OTHER_RESULTS), kernel=_factor
)


@_compat.api_boundary
def geqrf(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    donate: bool = False,
    precision: PrecisionLike | None = None,
) -> qr_factor.QRFactor:
    """Computes the QR decomposition of any matrix as Householder vectors, for repeated use.

    Uses blocked Householder reflectors over tile columns, after an exchange of blocks between all
    devices (LAPACK's geqrf and geqrt; R. Schreiber, C. Van Loan, SIAM J. Sci. Stat. Comput. 10,
    1989). |A - Q R| and |Q^H Q - I| are as small as LAPACK's. `jaxmg.linalg.qr` returns Q and R;
    `jaxmg.linalg.least_squares` returns a least squares solution.

    Args:
        a: (m, n); dtypes and sharding are as in `potrs`. Leading dimensions make a batch.
        T_A, mesh, matrix_specs, in_specs: As in `potrs`.
        donate: Whether to delete ``a``. Under ``jit`` use ``donate_argnums``.
        precision: As in `gesv`; also applies to `QRFactor.q`.

    Returns:
        A `QRFactor`. Its ``status`` is 0, or -1 if ``a`` has NaN or infinity; then all results of
        the factor are NaN. A rank-deficient ``a`` is valid.

    Cost: 2 n^2 (m - n / 3) flops over all ranks for m >= n (complex: 4 times). Memory: the factor,
    which is as large as ``a``, and panels of m x T_A.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `gesv`. A call inside
            ``shard_map`` raises a ValueError.

    Examples:
        >>> factor = jaxmg.geqrf(a)
        >>> x, q, r = factor.solve(b), factor.q(), factor.r
        >>> c = factor.multiply(b, trans="C")
    """
    arguments = collect(
        GEQRF, T_A, mesh, matrix_specs, in_specs, True, "native", donate, precision=precision
    )
    return dispatch.call(GEQRF, (a,), arguments, _rule, pack=qr_factor.pack)


def _rule(arguments):
    """JVP rule of `geqrf`: the tangent of the factor holds dA^T, laid out by rows."""

    def derivative(primals, tangents):
        factor = dispatch.transform(GEQRF, primals, arguments, _rule, qr_factor.pack)
        return factor, _tangent(factor, rectangular.exchanged(factor.layout, tangents[0]))

    return derivative


def _rule_of_transposed(arguments):
    def derivative(primals, tangents):
        factor = _factor_of_transposed(primals, arguments)
        return factor, _tangent(factor, rectangular.by_rows(factor.layout, tangents[0]))

    return derivative


def _tangent(factor, rows):
    rows = shardings.constrain_like(rows, factor.tiles) if factor.m and factor.n else factor.tiles
    return dataclasses.replace(derivatives.still(factor), tiles=rows)


def _factor_of_transposed(arrays, arguments):
    return dispatch.transform(
        TRANSPOSED, arrays, arguments, _rule_of_transposed, qr_factor.pack_transposed
    )


def factor_for(a, arguments, transposed) -> qr_factor.QRFactor:
    """Factors ``a``, or a^T, for the derivative of another routine that takes ``a``.

    Args:
        arguments: the arguments of that call.
    """
    options = (("precision", dict(arguments.options)["precision"]),)
    arguments = arguments._replace(
        outputs=GEQRF.outputs, backend="native", options=options, donate=False
    )
    if transposed:
        return _factor_of_transposed((a,), arguments)
    return dispatch.transform(GEQRF, (a,), arguments, _rule, qr_factor.pack)
