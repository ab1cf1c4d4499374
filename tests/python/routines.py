"""The table of routines: tests, digests, benchmarks and the check on GPUs iterate over its rows.

A new routine is a new row. This module imports neither JAX nor jaxmg, so that benchmarks can use it
with any version of the package, which they pass as `jaxmg`.
"""

import dataclasses

import numpy as np
import scipy.linalg


def _no_options(n):
    return {}


@dataclasses.dataclass(frozen=True)
class Routine:
    """The operands and results of a routine.

    Attributes:
        function: the public name: a function of jaxmg, or a class and its method.
        handlers: native handler -> a word (pattern) that its faults in tests/mutants contain.
        takes: operands. "a": a Hermitian positive definite matrix; "m": another one; "g": a general
            matrix; "b": right-hand sides; "factor", "refined": kept factors of "a"; "upper": the
            factor U; "lu", "qr": kept factors of "g"; "packed", "pivots": the packed LU factor of
            "g" and its pivots.
        returns: names of all results, with `options`.
        measure: function of (a, m, b, results) in double precision that returns the backward error.
            The first argument is "g" if the routine takes "g".
        options: function of the order n that returns the options of the call.
        unpack: function from the call's value to the tuple of results, if the value isn't one.
        backends: values of `backend=`; empty if the routine has no such option.
        precision: whether it takes `precision=`.
        transforms: whether JAX may batch and differentiate it.
        T_A: the tile width instead of None, if the function chooses none; 0: it takes none.
        benchmark: whether benchmarks measure it; problems.py then has its operations and error.
    """

    function: str
    handlers: dict
    takes: tuple
    returns: tuple
    measure: callable
    options: callable = _no_options
    unpack: callable = None
    backends: tuple = ()
    precision: bool = False
    transforms: bool = True
    T_A: int = None
    benchmark: bool = False

    @property
    def on_factor(self):
        """Whether the first operand is a factor, which determines tile width and mesh."""
        return self.takes[0] in ("factor", "refined", "ldl", "lu", "qr")

    @property
    def matrix(self):
        """The kind of the matrix that the results belong to."""
        return "g" if self.takes[0] in ("g", "lu", "qr", "packed") else "a"

    def make_operands(self, jaxmg, make, T_A=None, **where):
        """Returns the operands of a call; ``make(kind)`` returns the arrays "a", "m", "g" and
        "b"."""

        def operand(kind):
            if kind in ("a", "m", "g", "b"):
                return make(kind)
            if kind == "ldl":
                return jaxmg.linalg.ldl_factor(make("a"), T_A=T_A, **where)
            if kind == "qr":
                return jaxmg.geqrf(make("g"), T_A, **where)
            if kind in ("lu", "packed", "pivots"):
                factor = jaxmg.lu_factor(make("g"), T_A, **where)
                return factor if kind == "lu" else factor.packed()[kind == "pivots"]
            options = {"refine": "auto"} if kind == "refined" else {}
            factor = jaxmg.cho_factor(make("a"), T_A, **where, **options)
            return factor.upper() if kind == "upper" else factor

        return [operand(kind) for kind in self.takes]

    def call(self, jaxmg, operands, T_A=None, **options):
        """Returns the tuple of all results; ``options`` are mesh, in_specs, backend, precision."""
        function, first = jaxmg, operands[0]
        if self.on_factor:
            options = {}
        elif self.T_A == 0:
            options |= {"matrix_specs": options.pop("in_specs")} if "in_specs" in options else {}
        else:
            options["T_A"] = T_A or self.T_A
        options |= self.options(first.shape[-1])
        for part in self.function.split("."):
            function = getattr(function, part)
        results = function(*operands, **options)
        if self.unpack:
            return self.unpack(results)
        return tuple(results) if isinstance(results, tuple) else (results,)

    def error(self, a, m, b, results):
        """Returns the backward error of the results for ``a``, a matrix of the kind `matrix`. For
        correct results it is about n times the dtype's eps."""
        a, m, b, *results = map(_wide, (a, m, b, *results))
        return float(self.measure(a, m, b, results))


def _wide(array):
    array = np.asarray(array)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _norm(array):
    return np.linalg.norm(array, 2 if array.ndim == 2 else None) if array.size else 0.0


def _upper(a):
    return np.linalg.cholesky(a).conj().T


def _residual(a, x, b):
    return _norm(a @ x - b) / (_norm(a) * _norm(x) + _norm(b))


def _singular_values(a, m, b, results):
    return _norm(np.linalg.svd(a, compute_uv=False) - results[0]) / _norm(a)


def _polar_factors(a, m, b, results):
    return _norm(a - results[0] @ results[1]) / _norm(a)


def _solution(a, m, b, results):
    return _residual(a, results[0], b)


def _inertia(a, m, b, results):
    values = np.linalg.eigvalsh(a)
    counts = np.sum(values > 0), np.sum(values < 0), 0
    return sum(abs(found - count) for found, count in zip(results, counts, strict=True))


def _triangular_solution(a, m, b, results):
    return _residual(_upper(a).conj().T, results[0], b)


def _product(a, m, b, results):
    return _norm(results[0] - _upper(a).conj().T @ b) / (_norm(_upper(a)) * _norm(b))


def _inverse(a, m, b, results):
    return _norm(a @ results[0] - np.eye(len(a))) / (_norm(a) * _norm(results[0]))


def _factor(a, m, b, results):
    u = np.triu(results[0])
    return _norm(u.conj().T @ u - a) / _norm(a)


def _updated(a, m, b, results):
    return _factor(a + b @ b.conj().T, m, b, results)


def _lu(g, m, b, results):
    """Returns the error of A P^T = F G; the pivots are the interchanges of columns."""
    lu, pivots = results[0], np.asarray(results[1]).real.astype(int)
    product, columns = np.tril(lu) @ (np.triu(lu, 1) + np.eye(len(lu))), np.arange(len(lu))
    for i, pivot in enumerate(pivots):
        columns[[i, pivot]] = columns[[pivot, i]]
    return _norm(product - g[:, columns]) / _norm(g)


def _lu_diagonal(g, m, b, results):
    upper = scipy.linalg.lu(g.T)[2]
    return _norm(results[0] - np.diagonal(upper)) / _norm(upper)


def _qr(g, m, b, results):
    q, r = results[:2]
    return max(_norm(q @ np.triu(r) - g) / _norm(g), _norm(q.conj().T @ q - np.eye(len(g))))


def _q_product(g, m, b, results):
    """Returns the error in the norm of Q b. R determines Q only up to signs."""
    (product,) = results
    return _norm(np.abs(_norm(product) - _norm(b))) / _norm(b)


def _log_determinant(g, m, b, results):
    return _norm(results[0] - np.linalg.slogdet(g)[1]) / len(g)


def _diagonal(a, m, b, results):
    return _norm(results[0] - np.diagonal(_upper(a))) / _norm(_upper(a))


def _eigenvectors(a, m, b, results):
    return _pair(a, np.eye(len(a)), b, results)


def _pair(a, m, b, results):
    w, v = results[:2]
    orthogonality = v.conj().T @ m @ v - np.eye(v.shape[1])
    return max(_norm(a @ v - m @ v * w) / (_norm(a) * _norm(v)), _norm(orthogonality))


def _eigenvalues(a, m, b, results):
    return _norm(results[0] - np.linalg.eigvalsh(a)) / _norm(a)


def _rows(a, m, b, results):
    """Returns 0 if the results are A's rows in another order, possibly with rows of zeros; inf
    otherwise."""
    (rows,) = results
    same = sorted(map(tuple, rows[np.any(rows != 0, axis=1)])) if rows.size else []
    return 0 if [*map(list, same)] == [*map(list, sorted(map(tuple, a)))] else np.inf


def _with_status(n):
    return {"return_status": True}


def _subset(n):
    return {"subset_by_index": (n // 4, n // 4 + (n + 1) // 2), "return_status": True}


_ALL = ("native", "cusolvermg")

ROUTINES = {
    "potrs": Routine(
        "potrs", {"jaxmg_potrs": "potrs"}, ("a", "b"), ("x", "logdet", "status"), _solution,
        lambda n: {"return_status": True, "return_logdet": True},
        backends=_ALL, precision=True, benchmark=True,
    ),
    "refine": Routine(
        "potrs", {"jaxmg_hemm": "hemm", "jaxmg_all_gather": "refine"}, ("a", "b"),
        ("x", "status", "iterations"), _solution,
        lambda n: {"refine": "auto", "return_status": True, "return_iterations": True},
    ),
    "potri": Routine(
        "potri",
        {
            "jaxmg_potri": "potri", "jaxmg_product": "product",
            "jaxmg_root_exchange": "root_exchange",
        },
        ("a",),
        ("inverse", "status"), _inverse, _with_status,
        backends=_ALL, precision=True, benchmark=True,
    ),
    "syevd": Routine(
        "syevd", {"jaxmg_syevd": "syevd"}, ("a",), ("w", "v", "status"), _eigenvectors,
        _with_status, backends=_ALL, benchmark=True,
    ),
    "eigvalsh": Routine(
        "eigvalsh", {"jaxmg_syevd": "syevd"}, ("a",), ("w", "status"), _eigenvalues,
        _with_status, backends=("native",),
    ),
    "eigh": Routine(
        "eigh", {"jaxmg_syevx": "eigh"}, ("a",), ("w", "v", "status"), _eigenvectors, _subset,
        backends=("native",),
    ),
    "sygvd": Routine(
        "sygvd", {"jaxmg_sygvd": "sygvd"}, ("a", "m"), ("w", "v", "status"), _pair, _with_status,
        backends=("native",),
    ),
    "eigh_pair": Routine(
        "eigh", {"jaxmg_sygvx": "eigh leaves out its second matrix"}, ("a", "m"),
        ("w", "v", "status"), _pair, _subset, backends=("native",),
    ),
    "cyclic_1d": Routine(
        "cyclic_1d", {"jaxmg_cyclic_1d": "cyclic"}, ("a",), ("rows",), _rows,
        transforms=False, T_A=2,
    ),
    "cho_factor": Routine(
        "cho_factor", {"jaxmg_potrf": "cho_factor"}, ("a",), ("upper", "logdet", "status"),
        _factor, unpack=lambda factor: (factor.upper(), factor.logdet(), factor.status),
        precision=True,
    ),
    "cho_solve": Routine(
        "cho_solve", {"jaxmg_factor_apply": "cho_solve"}, ("factor", "b"), ("x",), _solution,
        benchmark=True,
    ),
    "solve_triangular": Routine(
        "CholeskyFactor.solve_triangular", {"jaxmg_factor_solve_rows": "rows of a matrix"},
        ("factor", "b"), ("x",), _triangular_solution,
    ),
    "matmul": Routine(
        "CholeskyFactor.matmul", {"jaxmg_factor_apply": "cho_solve"}, ("factor", "b"), ("product",),
        _product,
    ),
    "inv": Routine(
        "CholeskyFactor.inv", {"jaxmg_factor_invert": "inverse of a factor"}, ("factor",),
        ("inverse",), _inverse,
    ),
    "diagonal": Routine(
        "CholeskyFactor.diagonal", {"jaxmg_factor_diagonal": "diagonal of a factor"}, ("factor",),
        ("diagonal",), _diagonal,
    ),
    "from_upper": Routine(
        "CholeskyFactor.from_upper", {"jaxmg_factor_tiles": "from_upper"}, ("upper",), ("upper",),
        _factor, unpack=lambda factor: (factor.upper(),),
    ),
    "upper": Routine(
        "CholeskyFactor.upper", {"jaxmg_factor_rows": "upper factor"}, ("factor",), ("upper",),
        _factor,
    ),
    "update": Routine(
        "CholeskyFactor.update", {"jaxmg_factor_update": "update"}, ("factor", "b"),
        ("upper", "logdet", "status"), _updated,
        unpack=lambda factor: (factor.upper(), factor.logdet(), factor.status),
    ),
    "gesv": Routine(
        "gesv", {"jaxmg_gesv": "gesv"}, ("g", "b"), ("x", "logdet", "status"), _solution,
        lambda n: {"return_status": True, "return_logdet": True},
        unpack=lambda results: (results[0], *results[2:]), backends=("native",), benchmark=True,
    ),
    "getri": Routine(
        "getri", {"jaxmg_getri": "getri"}, ("g",), ("inverse", "status"), _inverse, _with_status,
        backends=("native",), benchmark=True,
    ),
    "lu_factor": Routine(
        "lu_factor", {"jaxmg_getrf": "lu_factor"}, ("g",), ("lu", "pivots", "logdet", "status"),
        _lu, unpack=lambda factor: (*factor.packed(), factor.logdet(), factor.status),
    ),
    "lu_solve": Routine(
        "lu_solve", {"jaxmg_lu_apply": "lu_solve"}, ("lu", "b"), ("x",), _solution,
        benchmark=True,
    ),
    "lu_inv": Routine(
        "LUFactor.inv", {"jaxmg_lu_invert": "inverse of an LU factor"}, ("lu",), ("inverse",),
        _inverse,
    ),
    "slogdet": Routine(
        "LUFactor.slogdet", {"jaxmg_lu_solve_rows": "rows of an LU factor"}, ("lu",), ("logdet",),
        _log_determinant, unpack=lambda results: results[1:],
    ),
    "lu_diagonal": Routine(
        "LUFactor.diagonal", {"jaxmg_lu_diagonal": "diagonal of an LU factor"}, ("lu",),
        ("lu_diagonal",), _lu_diagonal,
    ),
    "packed": Routine(
        "LUFactor.packed", {"jaxmg_lu_rows": "packed"}, ("lu",), ("lu", "pivots"), _lu,
    ),
    "from_packed": Routine(
        "LUFactor.from_packed", {"jaxmg_lu_tiles": "from_packed"}, ("packed", "pivots"),
        ("lu", "pivots", "logdet", "status"), _lu, transforms=False,
        unpack=lambda factor: (*factor.packed(), factor.logdet(), factor.status),
    ),
    "ldl_factor": Routine(
        "linalg.ldl_factor", {"jaxmg_hetrf": "ldl_factor"}, ("a",), ("logdet", "status"),
        _log_determinant, unpack=lambda factor: (factor.slogdet()[1], factor.status),
        transforms=False,
    ),
    "ldl_solve": Routine(
        "LDLFactor.solve", {"jaxmg_ldl_solve": "solution with an LDL factor"}, ("ldl", "b"),
        ("x",), _solution, transforms=False,
    ),
    "ldl_inertia": Routine(
        "LDLFactor.inertia", {"jaxmg_ldl_inertia": "inertia"}, ("ldl",),
        ("positive", "negative", "zero"), _inertia, transforms=False,
    ),
    "geqrf": Routine(
        "geqrf", {"jaxmg_geqrf": "geqrf", "jaxmg_qr_form": "Q is formed"}, ("g",),
        ("q", "r", "status"), _qr, transforms=False,
        unpack=lambda factor: (factor.q(), factor.r, factor.status), precision=True,
    ),
    "svdvals": Routine(
        "linalg.svdvals", {"jaxmg_gesvd": "bidiagonal_band"}, ("g",), ("s",),
        _singular_values, transforms=False, T_A=0,
    ),
    "lstsq": Routine(
        "linalg.lstsq", {"jaxmg_tall_qr": "tall_qr"}, ("g", "b"), ("x",), _solution,
        unpack=lambda results: results[:1], transforms=False, T_A=0,
    ),
    "polar": Routine(
        "linalg.polar", {"jaxmg_polar": "polar"}, ("g",), ("u", "h"), _polar_factors,
        transforms=False, T_A=0,
    ),
    "qr_multiply": Routine(
        "QRFactor.multiply",
        {"jaxmg_qr_apply": "right-hand sides", "jaxmg_qr_apply_rows": "columns are multiplied"},
        ("qr", "b"), ("product",), _q_product, transforms=False,
    ),
    "qr_solve": Routine(
        "QRFactor.solve", {"jaxmg_qr_solve": "is solved as M"}, ("qr", "b"), ("x",), _solution,
        transforms=False,
    ),
    "least_squares": Routine(
        "least_squares", {"jaxmg_gels": "gels"}, ("g", "b"), ("x", "status"), _solution,
        _with_status, transforms=False,
    ),
    "refined": Routine(
        "RefinedFactor.solve", {"jaxmg_hemm": "hemm", "jaxmg_all_gather": "refine"},
        ("refined", "b"), ("x", "status", "iterations"), _solution,
        lambda n: {"return_status": True, "return_iterations": True},
    ),
}  # fmt: skip
