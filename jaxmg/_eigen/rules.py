"""Derivatives of eigenvalues and eigenvectors.

With X^H B X = 1, N = X^H dA X and M = X^H dB X (0 where B is the identity),

    dw_j = N_jj - w_j M_jj,   dX = X G,  G_ij = (N_ij - M_ij w_j) / (w_j - w_i),  G_jj = -M_jj / 2,

for distinct eigenvalues (J. R. Magnus, Econom. Theory 1, 1985; R. M. Fox and M. P. Kapoor, AIAA J.
6, 1968). 0 / 0 counts as 0, so that a zero tangent contributes nothing. Any other quotient by 0 is
infinite, as in ``jnp.linalg.eigh``: eigenvectors of equal eigenvalues have no derivative. Here
eigenvalues count as equal if they differ by rounding.
"""

import dataclasses
import functools

import jax

from jaxmg._call import execute, record
from jaxmg._eigen import eigenvalue_rules
from jaxmg._layouts import layouts, shardings
from jaxmg._matrices import hermitian
from jaxmg._transform import derivatives, dispatch


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _StaticLayout:
    """The layout of a call's matrices as a static pytree, because tracers carry no placement."""

    layout: layouts.Layout


def rule(routine, solver, arguments, positions=slice(None)):
    """Returns the derivative rule of a call of ``routine``, for `derivatives.differentiable`.

    Args:
        solver: the routine that computes all eigenvectors, its first result.
        positions: a slice of the ascending eigenvalues: those that the call returns.
    """
    wanted = dict(arguments.options).get("return_eigenvectors", True)
    vectors, inside = solver.results[0], arguments.inside
    everything = arguments._replace(
        outputs=("w", *((vectors.name,) if wanted else ()), "status"), options=_options(wanted)
    )

    def solve(*arrays):
        layout = inside and inside.layout
        rows = execute.local_operands(solver, arrays, inside) if layout else arrays
        (w, *v, status), where = _solve(solver, everything, rows)
        if layout:
            v = [vectors.on_rank(x, layout, arrays[0])[:, positions] for x in v]
        elif positions != slice(None):
            v = [_columns(where.layout, x, positions) for x in v]
        makers = {
            "w": lambda: w[positions],
            "status": lambda: status,
            **{name: lambda: v[0] for name in (vectors.name, "v") if wanted},
        }
        works = zip((record.WORK, record.SECOND_WORK), arrays, strict=False)
        for name, array in works:
            makers[name] = functools.partial(jax.lax.stop_gradient, array)
        return execute.select_results(routine, arguments, makers)

    return derivatives.as_composed(solve)


def _columns(layout, v, positions):
    """Selects columns of a matrix that is sharded by rows, as `eigh` returns them. Sharded columns
    can't be sliced to a number that the devices don't divide."""
    return hermitian.with_padding(layout, hermitian.rows(layout, v)[:, positions], v.shape[0])


def _options(vectors):
    return (("return_eigenvectors", vectors), ("return_status", True))


def _solve(solver, arguments, arrays):
    """Returns ((w, v, status) or (w, status), `_StaticLayout`)."""
    inside = arguments.inside

    def run(*arrays):
        if inside is not None:
            values = dispatch.run_by_rows(solver, arrays, arguments)
            return values, _StaticLayout(inside.layout.by_rows)
        layout = execute.resolve_layout(solver, arrays, arguments)
        return dispatch.batch(solver, arrays, arguments), _StaticLayout(layout)

    def derivative(primals, tangents):
        with_vectors = arguments._replace(
            outputs=("w", solver.results[0].name, "status"), options=_options(True)
        )
        (w, v, status), where = _solve(solver, with_vectors, primals)
        wanted = len(arguments.outputs) == 3
        still = derivatives.still(status)
        if not wanted and len(primals) == 1 and inside is None:
            (a,), (a_dot,) = primals, tangents
            w = eigenvalue_rules.differentiated(where.layout, a, w, v)
            w_dot = eigenvalue_rules.tangents(where.layout, a, w, v, a_dot)
            return ((w, status), where), ((w_dot, still), where)
        w_dot, v_dot = _tangents(where.layout, w, v, tangents, wanted)
        if v_dot is None:
            return ((w, status), where), ((w_dot, still), where)
        return ((w, v, status), where), ((w_dot, v_dot, still), where)

    return derivatives.differentiable(run, derivative, *arrays)


def _tangents(layout, w, v, tangents, vectors):
    """Returns the tangents of w and v for the tangents of A and, if given, B."""
    x = hermitian.rows(layout, v)
    moved = [
        None if tangent is None else hermitian.times(layout, _whole(layout, tangent), x)
        for tangent in tangents
    ]
    a, b = moved[0], moved[1] if len(moved) > 1 else None
    if b is not None:
        by_w = hermitian.scaled(layout, b, w)
        a = -by_w if a is None else a - by_w
    w_dot = shardings.constrain_like(hermitian.column_products(layout, x, a), w)
    if not vectors:
        return w_dot, None
    half = None if b is None else -hermitian.column_products(layout, x, b) / 2
    inner = hermitian.quotients(layout, hermitian.adjoint_times(layout, x, a), w, half)
    return w_dot, hermitian.laid_out_like(layout, hermitian.times(layout, x, inner), v)


def _whole(layout, a):
    return hermitian.full(layout, hermitian.rows(layout, a))
