"""The derivatives of eigenvalues and eigenvectors.

With X^H B X = 1, N = X^H dA X and M = X^H dB X (0 where B is the identity),

    dw_j = N_jj - w_j M_jj,   dX = X G,  G_ij = (N_ij - M_ij w_j) / (w_j - w_i),  G_jj = -M_jj / 2,

of distinct eigenvalues (J. R. Magnus, Econom. Theory 1, 1985; R. M. Fox and M. P. Kapoor, AIAA J.
6, 1968). 0 / 0 is taken for 0: what has no part in a derivative leaves it alone. Any other quotient
by 0 is infinite, as in ``jnp.linalg.eigh``: eigenvectors of equal eigenvalues have no derivative.
"""

import dataclasses
import functools

import jax

from jaxmg._call import blocks, layouts, record
from jaxmg._transform import derivatives, hermitian


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Where:
    """Where the matrices of a call were, which no tracer knows."""

    layout: layouts.Layout


def rule(solver, vectors, subset=lambda chosen: slice(None)):
    """The ``rule`` of a `Routine`: what it gives, of those of all eigenvectors.

    Args:
        solver: function without arguments that returns the routine of all eigenvectors, in a matrix
            of the name ``vectors``.
        vectors: what either calls them.
        subset: function of the routine's options, a dict, that returns which ones it gives.
    """

    def of_routine(routine, chosen):
        options = dict(chosen.options)
        wanted = options.get("return_eigenvectors", True)
        places = subset(options)
        names = ("w", *((vectors,) if wanted else ()), "status")
        full = (("return_eigenvectors", wanted), ("return_status", True))
        everything = chosen._replace(names=names, options=full)

        def solve(*arrays):
            found, layout = solver(), chosen.inside and chosen.inside.layout
            rows = [blocks.to_rows(x, layout) for x in arrays] if layout else arrays
            (w, *v, status), _ = _solved(found, everything, rows)
            if layout:
                v = [found.results[0].on_rank(x, layout, arrays[0]) for x in v]
            makers = {
                "w": lambda: w[places],
                "status": lambda: status,
                **{name: lambda: v[0][:, places] for name in (vectors, "v") if wanted},
            }
            works = zip((record.WORK, record.SECOND_WORK), arrays, strict=False)
            for name, array in works:
                makers[name] = functools.partial(jax.lax.stop_gradient, array)
            return routine.picked(chosen, makers)

        return derivatives.as_composed(solve)

    return of_routine


def _solved(routine, chosen, arrays):
    """((w, v, status) or (w, status), `_Where`)"""

    def run(*arrays):
        if chosen.inside is not None:
            return routine.found_by_rows(arrays, chosen), _Where(chosen.inside.layout.by_rows)
        return routine.found(arrays, chosen), _Where(routine.layout(arrays, chosen))

    def derivative(primals, tangents):
        vectors = chosen._replace(
            names=("w", routine.results[0].name, "status"),
            options=(("return_eigenvectors", True), ("return_status", True)),
        )
        (w, v, status), where = _solved(routine, vectors, primals)
        w_dot, v_dot = _tangents(where.layout, w, v, tangents, len(chosen.names) == 3)
        still = derivatives.still(status)
        if v_dot is None:
            return ((w, status), where), ((w_dot, still), where)
        return ((w, v, status), where), ((w_dot, v_dot, still), where)

    return derivatives.differentiable(run, derivative, *arrays)


def _tangents(layout, w, v, tangents, vectors):
    """The tangents of eigenvalues, and eigenvectors, by those of A, and B."""
    x = hermitian.rows(layout, v)
    moved = [
        None if tangent is None else hermitian.times(layout, _whole(layout, tangent), x)
        for tangent in tangents
    ]
    a, b = moved[0], moved[1] if len(moved) > 1 else None
    if b is not None:
        by_w = hermitian.scaled(layout, b, w)
        a = -by_w if a is None else a - by_w
    w_dot = layouts.constrain_like(hermitian.column_products(layout, x, a), w)
    if not vectors:
        return w_dot, None
    half = None if b is None else -hermitian.column_products(layout, x, b) / 2
    inner = hermitian.quotients(layout, hermitian.adjoint_times(layout, x, a), w, half)
    return w_dot, hermitian.as_given(layout, hermitian.times(layout, x, inner), v)


def _whole(layout, a):
    return hermitian.full(layout, hermitian.rows(layout, a))
