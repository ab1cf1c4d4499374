"""The table of all functions of jaxmg.linalg, as functions of a matrix or a batch of matrices."""

import dataclasses
import typing

import cases
import jax
import jax.numpy as jnp
import numpy as np

import jaxmg
from jaxmg import linalg


@dataclasses.dataclass(frozen=True)
class Case:
    """A call whose results don't depend on signs of vectors.

    Attributes:
        of: the name of the function in jaxmg.linalg.
        call: function of a matrix, or a batch, that returns an array or a tuple of arrays.
        kind: the kind of matrix: "definite", "general", "tall" or "wide".
        derivative: whether the result has a derivative.
    """

    of: str
    call: typing.Callable
    kind: str
    derivative: bool = True


def _cho_solve(a):
    return linalg.cho_solve(linalg.cho_factor(a), a)


def _lu_solve(a):
    return linalg.lu_solve(linalg.lu_factor(a), a)


def _cg(a):
    return linalg.cg(a, a, tol=1e-5 if a.dtype.itemsize < 5 else 1e-13).x


def _pivoted_cholesky(a):
    found = linalg.pivoted_cholesky(a, 3, method="greedy")
    return found.L, found.pivots, found.diagonal


def _eigh(a):
    w, v = linalg.eigh(a)
    return w, v**2


def _eigsh(a):
    w, v = linalg.eigsh(a, 3, which="SA")
    return w, v**2


def _eigh_of_two(type):
    def call(a):
        w, v = linalg.eigh(a, a, type=type)
        return w, v**2

    return call


def _svd(a, **options):
    u, s, vh = linalg.svd(a, False, **options)
    return u**2, s, vh**2


def _svd_lowrank(a):
    u, s, vh = linalg.svd_lowrank(a, 2, iterations=8)[:3]
    return u**2, s, vh**2


def _householder_product(a):
    h, taus = linalg.qr(a, "raw")
    return linalg.householder_product(jnp.swapaxes(h, -1, -2), taus)


def _qr_multiply(a):
    return linalg.qr_multiply(a, jnp.ones(a.shape[-2], a.dtype))


def _ldl_solve(a):
    factor = linalg.ldl_factor(a)
    return factor.solve(a.astype(factor.dtype))


def _rcond(a):
    return jaxmg.lu_factor(a).rcond(linalg.norm(a, 1))


def _mapped(function):
    """Returns a function of a batch that maps ``function``, which takes a single matrix."""

    def call(a):
        of_batch = function
        for _ in a.shape[:-2]:
            of_batch = jax.vmap(of_batch)
        return of_batch(a)

    return call


def _first(function, *arguments, **options):
    return lambda a: function(a, *arguments, **options)[0]


def _with(function, *arguments, **options):
    return lambda a: function(a, *arguments, **options)


def _table():
    for of, call in {
        "cholesky": linalg.cholesky,
        "cho_factor": lambda a: jnp.triu(linalg.cho_factor(a)[0]),
        "cho_solve": _cho_solve,
        "eigh": _eigh,
        "eigvalsh": linalg.eigvalsh,
        "sqrtm": linalg.sqrtm,
        "logm": linalg.logm,
        "funm": _with(linalg.funm, jnp.tanh),
    }.items():
        yield of, Case(of, call, "definite")
    yield from ((f"eigh-{i}", Case("eigh", _eigh_of_two(i), "definite")) for i in (1, 2, 3))
    yield "eigsh", Case("eigsh", _eigsh, "definite")
    yield "solve-pos", Case("solve", lambda a: linalg.solve(a, a, assume_a="pos"), "definite")
    yield "ldl_factor", Case("ldl_factor", _mapped(_ldl_solve), "definite")
    yield "ldl", Case("ldl", linalg.ldl, "definite", False)
    yield "expm-her", Case("expm", _with(linalg.expm, assume_a="her"), "definite")
    yield "cg", Case("cg", _cg, "definite")
    yield "pivoted_cholesky", Case("pivoted_cholesky", _pivoted_cholesky, "definite")
    yield "svd-hermitian", Case("svd", _with(_svd, hermitian=True), "definite")
    yield "pinv-hermitian", Case("pinv", _with(linalg.pinv, hermitian=True), "definite")
    for of, call in {
        "solve": lambda a: linalg.solve(a, a),
        "inv": linalg.inv,
        "det": lambda a: linalg.det(a) / 1e7,  # near 1, so that `total`'s sine keeps its digits
        "slogdet": linalg.slogdet,
        "lu": linalg.lu,
        "lu_factor": _first(linalg.lu_factor),
        "lu_solve": _lu_solve,
        "matrix_power": _with(linalg.matrix_power, 3),
        "expm": lambda a: linalg.expm(a / 8),  # the sine of a small exponential keeps its digits
        "solve_triangular": lambda a: linalg.solve_triangular(a, a, lower=True),
    }.items():
        yield of, Case(of, call, "general")
    for p in (None, 1, -1, "fro", "nuc", jnp.inf, -jnp.inf, 2, -2):
        estimated = p in (1, jnp.inf)
        yield f"cond-{p}", Case("cond", _with(linalg.cond, p), "general", not estimated)
    for kind in ("tall", "wide"):
        for of, call in {
            "svd": _svd,
            "svdvals": linalg.svdvals,
            "polar": linalg.polar,
            "pinv": linalg.pinv,
            "lstsq": lambda a: linalg.lstsq(a, a[..., :2])[0],
            "least_squares": lambda a: linalg.least_squares(a, a[..., :2]),
            "qr": linalg.qr,
        }.items():
            yield f"{of}-{kind}", Case(of, call, kind)
        yield f"svd-subset-{kind}", Case("svd", _with(_svd, subset_by_index=(1, 3)), kind)
        yield f"svd-native-{kind}", Case("svd", _with(_svd, backend="native"), kind)
        yield f"qr-r-{kind}", Case("qr", _with(linalg.qr, "r"), kind)
        yield f"qr-pivoting-{kind}", Case("qr", _with(linalg.qr, pivoting=True), kind)
        yield f"qr_multiply-{kind}", Case("qr_multiply", _qr_multiply, kind)
        yield f"orth-{kind}", Case("orth", lambda a: linalg.orth(a, rank=2) ** 2, kind)
        yield f"svd_lowrank-{kind}", Case("svd_lowrank", _svd_lowrank, kind, False)
        yield f"matrix_rank-{kind}", Case("matrix_rank", linalg.matrix_rank, kind, False)
    for order in (None, 1, jnp.inf, -1, -jnp.inf, 2, -2, "nuc"):
        call = _with(linalg.norm, order, (-2, -1))
        yield f"norm-{order}", Case("norm", call, "tall")
    yield "rcond", Case("lu_factor", _mapped(_rcond), "general", False)
    yield "null_space", Case("null_space", lambda a: linalg.null_space(a, rank=4) ** 2, "wide")
    yield "householder_product", Case("householder_product", _householder_product, "tall", False)


TABLE = dict(_table())


def matrices(kind, leading, n=8):
    """Returns matrices of this kind with these leading dimensions; their singular values differ."""
    rows, columns = {"tall": (n, n // 2), "wide": (n // 2, n)}.get(kind, (n, n))
    x = cases.rng(3).normal(size=(*leading, rows, columns))
    if kind == "definite":
        return x @ np.swapaxes(x, -1, -2) / n + np.diag(np.arange(1.0, n + 1))
    return x + 2 * np.eye(rows, columns) * np.arange(1.0, columns + 1)


def total(call):
    """Returns a function that reduces all results to a number, for derivatives."""

    def run(a):
        leaves = [x for x in jax.tree.leaves(call(a)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum(jnp.sum(jnp.sin(x)) for x in leaves)

    return run
