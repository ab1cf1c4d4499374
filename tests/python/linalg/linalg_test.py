"""jaxmg.linalg against NumPy, SciPy and JAX on one device."""

import functools
import inspect
import itertools

import cases
import jax
import jax.numpy as jnp
import linalg_cases
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat, linalg


def _again(lower, a, b, **where):
    return linalg.cho_solve(linalg.cho_factor(a, lower, **where), b, **where)


def _lengths(v):
    """Returns the entries' absolute values; phases of eigenvectors are arbitrary."""
    return abs(v).astype(v.dtype)


# Name -> (our function of a, b and placement, NumPy's or SciPy's function of a and b, the kind of
# a).
FUNCTIONS = {
    "solve": (linalg.solve, np.linalg.solve, "general"),
    "inv": (lambda a, b, **o: linalg.inv(a, **o), lambda a, b: np.linalg.inv(a), "general"),
    "cholesky": (
        lambda a, b, **o: linalg.cholesky(a, **o),
        lambda a, b: np.linalg.cholesky(a),
        "definite",
    ),
    "cholesky_upper": (
        lambda a, b, **o: linalg.cholesky(a, upper=True, **o),
        lambda a, b: np.linalg.cholesky(a).conj().T,
        "definite",
    ),
    "cho_solve": (functools.partial(_again, False), np.linalg.solve, "definite"),
    "cho_solve_lower": (functools.partial(_again, True), np.linalg.solve, "definite"),
    "eigh": (
        lambda a, b, **o: _lengths(linalg.eigh(a, **o).eigenvectors),
        lambda a, b: _lengths(np.linalg.eigh(a)[1]),
        "hermitian",
    ),
    "eigvalsh": (
        lambda a, b, **o: linalg.eigvalsh(a, **o),
        lambda a, b: np.linalg.eigvalsh(a),
        "hermitian",
    ),
    "slogdet": (
        lambda a, b, **o: jnp.stack([x.astype(a.dtype) for x in linalg.slogdet(a, **o)]),
        lambda a, b: np.stack(np.linalg.slogdet(a)),
        "general",
    ),
    "det": (lambda a, b, **o: linalg.det(a, **o), lambda a, b: np.linalg.det(a), "general"),
    "matrix_power": (
        lambda a, b, **o: linalg.matrix_power(a, 5, **o),
        lambda a, b: np.linalg.matrix_power(a, 5),
        "any",
    ),
    "matrix_power_of_the_inverse": (
        lambda a, b, **o: linalg.matrix_power(a, np.int64(-2), **o),
        lambda a, b: np.linalg.matrix_power(a, -2),
        "general",
    ),
    "sqrtm": (
        lambda a, b, **o: linalg.sqrtm(a, **o),
        lambda a, b: scipy.linalg.sqrtm(a),
        "definite",
    ),
    "expm": (
        lambda a, b, **o: linalg.expm(a, assume_a="her", **o),
        lambda a, b: scipy.linalg.expm(a),
        "hermitian",
    ),
    "logm": (lambda a, b, **o: linalg.logm(a, **o), lambda a, b: scipy.linalg.logm(a), "definite"),
    "funm": (
        lambda a, b, **o: linalg.funm(a, jnp.cos, **o),
        lambda a, b: scipy.linalg.cosm(a),
        "hermitian",
    ),
}
NATIVE = [name for name, (*_, kind) in FUNCTIONS.items() if kind != "any"]
OF_HERMITIAN = [name for name in NATIVE if FUNCTIONS[name][2] != "general"]
ELSEWHERE = ("cholesky_upper", "cho_solve", "cho_solve_lower", "sqrtm", "logm", "funm")
TABLE = cases.broad(
    [
        (name, n, ranks, cases.DTYPES[(i + j + k) % 4])
        for (i, name), (j, n), (k, ranks) in itertools.product(
            enumerate(FUNCTIONS), enumerate((16, 13, 1)), enumerate((1, 2, 4, 8))
        )
    ],
    core=lambda name, n, ranks, dtype: (
        (n, ranks) == ((16, 4) if len(name) % 2 else (13, 2)) and name not in ELSEWHERE
    ),
)


def _each(names):
    """Parametrizes by the names whose code differs in the tested property; all ``names`` are
    breadth."""
    core = ("solve", "cholesky", "eigvalsh", "funm")
    return pytest.mark.parametrize(
        "name", cases.broad([(n,) for n in names], core=lambda n: n in core)
    )


def _matrix(kind, n, dtype):
    if kind == "any":
        return cases.normal(cases.rng(n), (n, n), dtype)
    if kind == "hermitian":
        return cases.hermitian(n, dtype)
    make = cases.general if kind == "general" else cases.positive_definite
    return make("well", n, dtype)


def _close(found, expected, dtype):
    __tracebackhide__ = True
    found, expected = cases.wide(found), cases.wide(expected)
    assert found.shape == expected.shape
    unit, largest = max(cases.eps(dtype), cases.eps(found.dtype)), np.abs(expected).max(initial=0)
    atol = 200 * max(expected.shape, default=16) * unit * largest
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def _all_nan(found):
    """Asserts that all values are NaN, except a factor's zeros on one side of the diagonal."""
    __tracebackhide__ = True
    found = np.isnan(found)
    if found.ndim == 2 and not found.all():
        below = np.tri(*found.shape, k=-1, dtype=bool)
        assert (found == ~below).all() or (found == ~below.T).all()
    else:
        assert found.all()


def _where(mesh):
    return {"mesh": mesh, "matrix_specs": P(mesh.axis_names, None)}


@cases.kinds
@pytest.mark.parametrize("name, n, ranks, dtype", TABLE)
def test_is_the_one_of_one_device(name, n, ranks, dtype, kind):
    if name == "funm" and kind == AxisType.Explicit and dtype.startswith("complex"):
        if jax.__version_info__ < (0, 10):
            pytest.skip("JAX 0.6 can't compile jnp.cos of complex numbers on explicit axes")
    ours, theirs, which = FUNCTIONS[name]
    matrix, b = _matrix(which, n, dtype), cases.normal(cases.rng(5), (n, 2), dtype)
    mesh = cases.line(ranks, kind=kind)
    a = cases.shard_rows(matrix, mesh)
    found = ours(a, b)
    _close(found, theirs(cases.wide(matrix), cases.wide(b)), dtype)
    real = np.finfo(dtype).dtype
    assert found.dtype == (real if name == "eigvalsh" else dtype)
    if found.shape == a.shape:
        assert found.sharding.is_equivalent_to(a.sharding, 2)


@pytest.mark.slow
@_each(NATIVE)
def test_no_device_has_a_whole_matrix(name):
    if name in ("cholesky", "cho_solve_lower") and not _compat.COMPILES_EXCHANGES:
        pytest.skip("XLA of JAX before 0.10 aborts on the exchange of a transposition")
    ranks = max(2, min(8, len(jax.devices())))
    n, mesh = 12 * ranks, cases.line(ranks)
    ours = functools.partial(FUNCTIONS[name][0], **_where(mesh))
    by_rows = jax.NamedSharding(mesh, P("r", None))
    a = jax.ShapeDtypeStruct((n, n), np.float64, sharding=by_rows)
    b = jax.ShapeDtypeStruct((n,), np.float64)
    run = jax.jit(lambda a, b: jax.lax.with_sharding_constraint(ours(a, b), by_rows))
    if name in ("solve", "cho_solve", "cho_solve_lower", "eigvalsh", "slogdet", "det"):
        run = jax.jit(ours)
    text = run.lower(a, b).compile().as_text()
    assert f"f64[12,{n}]" in text and f"f64[{n},{n}]" not in text


@pytest.mark.extended
@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="on GPUs XLA counts more than copies of the rows"
)
def test_a_look_at_the_matrix_takes_little_memory():
    n, mesh = 512, cases.line(4)
    by_rows = jax.NamedSharding(mesh, P("r", None))
    a, b = jax.ShapeDtypeStruct((n, n), float, sharding=by_rows), jax.ShapeDtypeStruct((n,), float)

    def memory(solve):
        run = jax.jit(functools.partial(solve, **_where(mesh)))
        return run.lower(a, b).compile().memory_analysis().temp_size_in_bytes

    def upper(a, b, **where):
        return jaxmg.cho_factor(a, **where).upper()

    def upper_of_hermitian(a, b, **where):
        return linalg.cholesky(a, upper=True, **where)

    # Scaling the matrix copies the rows; choosing between two factorizations copies them once more.
    rows = 8 * n * n // 4
    assert memory(upper_of_hermitian) <= memory(upper) + rows + 8 * 64 * n
    assert memory(linalg.solve) <= memory(jaxmg.gesv) + 2 * rows + 8 * 64 * n


@pytest.mark.core("cholesky")
@pytest.mark.parametrize(
    "name, n",
    cases.broad(
        itertools.product(("solve", "cholesky", "expm"), (16, 13)),
        core=lambda name, n: (name, n) in (("cholesky", 13), ("expm", 16)),
    ),
)
def test_explicit_axes(name, n):
    ours, theirs, kind = FUNCTIONS[name]
    mesh, matrix = cases.line(4, kind=AxisType.Explicit), _matrix(kind, n, "float64")
    b = cases.normal(cases.rng(5), (n,), "float64")
    found = ours(cases.shard_rows(matrix, mesh), cases.shard(b, mesh))
    _close(found, theirs(matrix, b), "float64")


@pytest.mark.breadth
@pytest.mark.parametrize(
    "lower, dtype",
    cases.broad(
        itertools.product((False, True), ("float64", "complex64")),
        core=lambda lower, dtype: lower == (dtype == "complex64"),
    ),
)
def test_one_triangle_is_read_where_one_is_named(lower, dtype):
    n, mesh = 13, cases.line(4)
    matrix, b = cases.positive_definite("well", n, dtype), cases.normal(cases.rng(5), n, dtype)
    a, where = cases.upper_only(matrix), _where(mesh)
    a = a.conj().T if lower else a
    x = np.linalg.solve(cases.wide(matrix), cases.wide(b))
    _close(linalg.solve(a, b, lower=lower, assume_a="pos", **where), x, dtype)
    _close(_again(lower, a, b, **where), x, dtype)
    c, also_lower = linalg.cho_factor(a, lower, **where)
    factor = np.linalg.cholesky(cases.wide(matrix))
    _close(c, factor if lower else factor.conj().T, dtype)
    assert also_lower is lower
    c = c.at[(jnp.triu_indices if lower else jnp.tril_indices)(n, 1 if lower else -1)].set(jnp.nan)
    _close(linalg.cho_solve((c, lower), b, **where), x, dtype)
    half = {"symmetrize_input": False, **where}
    _close(linalg.cholesky(a, upper=not lower, **half), factor if lower else factor.conj().T, dtype)
    w, v = linalg.eigh(a, "L" if lower else "U", **half)
    _close((v * w) @ v.conj().T, matrix, dtype)
    _close(linalg.eigvalsh(a, "L" if lower else "U", **half), w, dtype)


@cases.kinds
@pytest.mark.slow
@_each(OF_HERMITIAN)
def test_not_hermitian_is_nan(name, kind):
    """If no argument names a triangle, a matrix that differs from Hermitian in one entry yields
    NaN."""
    ours, *_, which = FUNCTIONS[name]
    matrix = _matrix(which, 13, "float64")
    for entry in {"cho_solve": (), "cho_solve_lower": ()}.get(name, ((12, 0), (3, 4))):
        spoilt = matrix.copy()
        spoilt[entry] += 1e-6
        _all_nan(ours(spoilt, np.ones(13), mesh=cases.line(4, kind=kind)))


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype", cases.broad([(d,) for d in cases.DTYPES], core=lambda d: d == "float32")
)
def test_hermitian_but_for_rounding(dtype):
    random, n = cases.rng(3), 130
    for matrix in (cases.positive_definite("graded", n, dtype), np.ones((n, n), dtype) + np.eye(n)):
        for scale in (1e-30, 1, 1e30):
            noise = 1 + 4 * cases.eps(dtype) * random.uniform(-1, 1, (n, n))
            a = (matrix * noise * scale).astype(dtype)
            assert np.isfinite(linalg.eigvalsh(a, mesh=cases.line(4))).all()


@_each([name for name in OF_HERMITIAN if FUNCTIONS[name][2] == "definite"])
def test_not_positive_definite_is_nan(name):
    matrix = np.diag([1.0, -2, 3, 4])
    _all_nan(FUNCTIONS[name][0](matrix, np.ones(4), mesh=cases.line(2)))


def _rotation(a, mesh):
    return linalg.funm(a, lambda w: jax.lax.complex(jnp.cos(w), jnp.sin(w)), mesh=mesh)


@pytest.mark.extended
@pytest.mark.parametrize(
    "function, of_values, kind",
    [
        pytest.param(linalg.sqrtm, np.emath.sqrt, complex, marks=pytest.mark.breadth),
        (linalg.logm, np.emath.log, complex),
        (_rotation, lambda w: np.exp(1j * w), float),
    ],
    ids=["sqrtm", "logm", "rotation"],
)
def test_complex_functions_of_eigenvalues_of_both_signs(function, of_values, kind):
    matrix = cases.hermitian(13, "float64")
    w, v = np.linalg.eigh(matrix)
    found = function(matrix.astype(kind), mesh=cases.line(4))
    _close(found, (v * of_values(w)) @ v.T, "complex128")


@pytest.mark.breadth
def test_root_of_a_singular_matrix():
    """The root is right although rounding moves the eigenvalues at 0 to both sides of it."""
    x = cases.normal(cases.rng(1), (13, 4), "float64")
    root = linalg.sqrtm(x @ x.T, mesh=cases.line(4))
    assert np.linalg.norm(root @ root - x @ x.T, 2) <= 1e-12 * np.linalg.norm(x, 2) ** 2


@pytest.mark.extended
@pytest.mark.parametrize(
    "function, dtype",
    [
        (linalg.sqrtm, "float32"),
        (linalg.logm, "complex64"),
        cases.breadth(linalg.sqrtm, "complex64"),
        cases.breadth(linalg.logm, "float32"),
    ],
)
def test_functions_where_eigenvalues_are_small(function, dtype):
    """Positive eigenvalues below n eps times the largest are kept."""
    n = 200
    w = np.logspace(0, -5, n)
    q, _ = np.linalg.qr(
        cases.normal(cases.rng(1), (n, n), "complex128" if dtype[0] == "c" else "float64")
    )
    matrix = ((q * w) @ q.conj().T).astype(dtype)
    assert 50 * cases.eps(dtype) < w[-1] and w[-10] < n * cases.eps(dtype)
    w, v = np.linalg.eigh(cases.wide(matrix))
    of_w = np.sqrt(w) if function is linalg.sqrtm else np.log(w)
    found, expected = cases.wide(function(matrix, mesh=cases.line(4))), (v * of_w) @ v.conj().T
    # The effect on the smallest eigenvalue's function of rounding by eps times the largest.
    slope = 1 / (2 * np.sqrt(w[0])) if function is linalg.sqrtm else 1 / w[0]
    assert np.linalg.norm(found - expected, 2) <= 20 * cases.eps(dtype) * slope
    if function is linalg.sqrtm:
        assert np.linalg.norm(found @ found - matrix, 2) <= 20 * cases.eps(dtype)


@pytest.mark.parametrize("exponent", [0, 1, 2])
def test_powers_of_any_matrix(exponent):
    matrix = cases.normal(cases.rng(2), (13, 13), "complex128")
    found = linalg.matrix_power(matrix, exponent, mesh=cases.line(4))
    _close(found, np.linalg.matrix_power(matrix, exponent), "complex128")


@pytest.mark.core("5-leading0-int32")
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("leading", [(), pytest.param((2,), marks=cases.needs_transformations)])
@pytest.mark.parametrize("exponent", [0, 1, 5])
def test_powers_of_integers_are_integers(exponent, leading, dtype):
    matrix = cases.rng(2).integers(0, 9, (*leading, 13, 13)).astype(dtype)
    found = linalg.matrix_power(matrix, exponent, mesh=cases.line(4))
    expected = jnp.linalg.matrix_power(matrix, exponent)
    assert found.dtype == expected.dtype == dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.extended
def test_a_negative_power_of_integers_is_not_of_integers():
    found = linalg.matrix_power(2 * np.eye(3, dtype="int32"), -2, mesh=cases.line(2))
    np.testing.assert_allclose(found, np.eye(3) / 4, rtol=1e-6)


def test_mesh_of_what_is_differentiated():
    """The mesh is found in eager differentiation, although the tracers don't show it."""
    mesh = cases.line(2)
    matrix, tangent = (
        cases.normal(cases.rng(2), (8, 8), "float64"),
        cases.normal(cases.rng(3), (8, 8), "float64"),
    )
    a, a_dot = (cases.shard(x, mesh, "r", None) for x in (matrix, tangent))
    found = jax.jvp(functools.partial(linalg.matrix_power, n=2), (a,), (a_dot,))
    for ours, theirs in zip(
        found, (matrix @ matrix, matrix @ tangent + tangent @ matrix), strict=True
    ):
        _close(ours, theirs, "float64")
        assert ours.sharding.is_equivalent_to(a.sharding, 2)


def test_a_kept_factor_is_taken_too():
    matrix, b = cases.positive_definite("well", 13, "float64"), np.ones(13)
    factor = jaxmg.cho_factor(matrix, mesh=cases.line(4))
    _close(linalg.cho_solve((factor, False), b), np.linalg.solve(matrix, b), "float64")


def test_names_of_the_results():
    assert linalg.EighResult._fields == jnp.linalg.eigh(np.eye(2))._fields
    assert linalg.SlogdetResult._fields == jnp.linalg.slogdet(np.eye(2))._fields


@_each([name for name in FUNCTIONS if name != "logm"])  # SciPy's raises
def test_no_rows(name):
    (ours, theirs, _), a, b = FUNCTIONS[name], np.zeros((0, 0)), np.zeros((0, 2))
    np.testing.assert_array_equal(ours(a, b, mesh=cases.line(2)), theirs(a, b))


# Defaults that differ from JAX's. `assume_a` has the current default of SciPy, which detects the
# structure. For the others None leaves the choice to the arguments of jax.numpy.linalg.
_OTHER_DEFAULTS = {
    ("solve", "assume_a"), ("cholesky", "lower"), ("eigh", "lower"),
    ("matrix_rank", "tol"), ("pinv", "rcond"),  # in JAX 0.6
}  # fmt: skip
# Arguments of jax.scipy.linalg that are keyword-only here, since other arguments are in their
# positions.
_BY_KEYWORD = {"eigh"}
# Functions with the arguments of jax.numpy.linalg, whose arguments in jax.scipy.linalg differ. Then
# functions that not all versions of JAX have, or that JAX has in jax.lax.linalg.
_NUMPYS = {"qr", "svd", "pinv"}
_OURS = {
    "least_squares", "logm", "qr_multiply", "householder_product", "orth", "null_space",
    "svd_lowrank", "ldl", "ldl_factor", "cg", "CGInfo", "eigsh", "EigshInfo",
    "pivoted_cholesky",
}  # fmt: skip


@pytest.mark.parametrize("module", [jnp.linalg, jax.scipy.linalg], ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in linalg.__all__
        if not name.endswith(("Result", "Info")) and name not in _OURS
    ],
)
def test_arguments_are_jaxs(name, module):
    if not hasattr(module, name) or (module is jax.scipy.linalg and name in _NUMPYS):
        assert hasattr(jnp.linalg, name) or hasattr(jax.scipy.linalg, name)
        return
    ours = inspect.signature(getattr(linalg, name)).parameters
    own = [argument for argument in ours if argument != "memory"]
    assert own[-3:] == ["mesh", "matrix_specs", "in_specs"]
    theirs = inspect.signature(getattr(module, name)).parameters.values()
    by_keyword = module is jax.scipy.linalg and name in _BY_KEYWORD
    for position, parameter in enumerate(theirs):
        mine = ours[parameter.name]
        if parameter.kind is not parameter.KEYWORD_ONLY and not (by_keyword and position):
            assert [*ours].index(parameter.name) == position and mine.kind == parameter.kind
        if (name, parameter.name) not in _OTHER_DEFAULTS:
            assert mine.default == parameter.default


@pytest.mark.core("solve")
@pytest.mark.parametrize(
    "name, kind",
    cases.broad(
        itertools.product(
            ("solve", "cho_solve_lower", "eigvalsh", "det", "expm"),
            (AxisType.Auto, AxisType.Explicit),
        ),
        lambda name, kind: (kind == AxisType.Auto) == (name in ("solve", "eigvalsh")),
    ),
)
def test_in_a_context_jit_needs_no_mesh(name, kind):
    ours, theirs, which = FUNCTIONS[name]
    matrix, b = _matrix(which, 8, "complex128"), cases.normal(cases.rng(5), (8, 2), "complex128")
    with cases.context(cases.line(4, kind=kind)):
        _close(jax.jit(ours)(matrix, b), theirs(matrix, b), "complex128")


@pytest.mark.extended
@pytest.mark.parametrize("lower", [cases.breadth(False), True])
def test_scipys_arguments(lower):
    matrix, where = cases.positive_definite("well", 13, "float64"), _where(cases.line(4))
    read = cases.upper_only(matrix).T if lower else cases.upper_only(matrix)
    for found in (linalg.cholesky(read, lower, **where), linalg.cholesky(read, lower=lower)):
        _close(found, scipy.linalg.cholesky(matrix, lower=lower), "float64")
    w, v = linalg.eigh(read, lower=lower, check_finite=False, turbo=False, **where)
    _close(w, np.linalg.eigvalsh(matrix), "float64")
    _close((np.asarray(v) * np.asarray(w)) @ np.asarray(v).T, matrix, "float64")
    _close(linalg.eigh(read, lower=lower, eigvals_only=True, **where), w, "float64")
    _close(linalg.inv(matrix, True, check_finite=False), np.linalg.inv(matrix), "float64")
    _close(linalg.det(matrix, True, check_finite=False), np.linalg.det(matrix), "float64")


_PROMOTIONS = [
    ("float32", "float64"),
    ("float64", "float32"),
    ("float64", "complex64"),
    ("complex64", "float32"),
    ("int32", "int64"),
    ("int32", "float32"),
    ("float32", "bool"),
    ("int64", "complex128"),
]


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind, of_a, of_b",
    cases.broad(
        [(kind, *dtypes) for dtypes in _PROMOTIONS for kind in ("numpy", "jax")],
        lambda *case: (
            case
            in {
                ("jax", "float64", "complex64"),
                ("numpy", "int32", "float32"),
            }
        ),
    ),
)
def test_dtypes_are_promoted_as_jax_does(kind, of_a, of_b):
    kind = {"numpy": np.asarray, "jax": jnp.asarray}[kind]
    a, b = kind(np.diag([1, 2, 3]).astype(of_a)), kind(np.ones((3, 2), of_b))
    for ours, theirs in (  # with JAX's default promotion, whatever a run sets
        (linalg.solve, jnp.linalg.solve),
        (
            lambda a, b: linalg.cho_solve((a, False), b),
            lambda a, b: jax.scipy.linalg.cho_solve((a, False), b),
        ),
        (lambda a, b: linalg.inv(a), lambda a, b: jnp.linalg.inv(a)),
        (lambda a, b: linalg.eigvalsh(a), lambda a, b: jnp.linalg.eigvalsh(a)),
        (lambda a, b: linalg.expm(a), lambda a, b: jax.scipy.linalg.expm(a)),
    ):
        with jax.numpy_dtype_promotion("standard"):
            found, expected = ours(a, b), theirs(a, b)
        assert found.dtype == expected.dtype
        _close(found, expected, found.dtype)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", cases.breadth("complex64")])
@pytest.mark.parametrize("leading", [(), cases.breadth((4,))], ids=["single", "batch"])
def test_single_precision_stays_single(dtype, leading):
    """With JAX's 64-bit dtypes, of every function."""
    if leading and not _compat.TRANSFORMS:
        pytest.skip("batches need JAX 0.10")
    for name, case in linalg_cases.TABLE.items():
        shape = linalg_cases.matrices(case.kind, leading).shape
        with cases.context(cases.line(4)):
            found = jax.eval_shape(case.call, jax.ShapeDtypeStruct(shape, dtype))
        dtypes = {str(x.dtype) for x in jax.tree.leaves(found)}
        assert not dtypes & {"float64", "complex128"}, (name, dtypes)


@pytest.mark.extended
def test_strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        dtypes = "'float(32', 'float64|64', 'float32)'"
        with pytest.raises(ValueError, match=f"{dtypes}.* no available implicit"):
            linalg.solve(np.eye(3, dtype="float32"), np.ones(3))
        assert linalg.solve(np.eye(3), np.ones(3)).dtype == "float64"


_EYE = np.eye(3)


@pytest.mark.parametrize(
    "call, error, match",
    [
        (lambda: linalg.solve(_EYE, _EYE, assume_a="band"), ValueError, "assume_a must be one of"),
        (lambda: linalg.solve(_EYE, _EYE, assume_a="banded"), ValueError, "scipy.linalg.solve"),
        (lambda: linalg.solve(_EYE, _EYE, assume_a="tridiagonal"), ValueError, "tridiagonal_solve"),
        (lambda: linalg.solve(_EYE, np.ones(2)), ValueError, r"linalg.solve: b must have shape"),
        (lambda: linalg.inv(np.ones((3, 2))), ValueError, r"linalg.inv: a must be a square"),
        (lambda: linalg.inv(jnp.eye(3, dtype="float8_e5m2")), TypeError, r"inv: a has dtype float"),
        (lambda: linalg.cholesky(_EYE, lower=False, upper=True), ValueError, "pass one of them"),
        (lambda: linalg.eigh(_EYE, eigvals=(0, 1)), NotImplementedError, r"jaxmg.eigh\(a, b, sub"),
        (lambda: linalg.eigh(_EYE, _EYE, type=4), ValueError, "type must be 1, 2 or 3; got 4"),
        (lambda: linalg.eigh(_EYE, np.eye(2)), ValueError, r"b must have the order of a; they"),
        (lambda: linalg.eigh(_EYE, b=np.ones(3)), ValueError, r"of a; .* \(3,\) and \(3, 3\)"),
        (lambda: linalg.eigvalsh(_EYE, _EYE), TypeError, r"call jaxmg.eigvalsh\(a, b\)"),
        pytest.param(
            lambda: linalg.solve(np.ones((2, 3, 3)), np.ones((4, 3, 1))),
            ValueError,
            r"solve: the leading dimensions of b, of shape \(4, 3, 1\), don't broadcast against",
            marks=cases.needs_transformations,
        ),
        (lambda: linalg.det([[1.0]]), TypeError, r"linalg.det: a must be a JAX or NumPy array"),
        (lambda: linalg.eigh(_EYE, "l"), ValueError, r"linalg.eigh: UPLO must be None, 'L' or"),
        (
            lambda: linalg.matrix_power(np.eye(3, dtype=bool), 2),
            TypeError,
            "matrix_power: a has dtype bool; the supported dtypes are float32, .*, int8",
        ),
        (lambda: linalg.matrix_power(_EYE, 0.5), TypeError, r"n must be an integer; got 0.5"),
        (
            lambda: linalg.expm(_EYE, upper_triangular=True, assume_a="her"),
            ValueError,
            "linalg.expm: upper_triangular=True contradicts assume_a='her'",
        ),
        (lambda: linalg.expm(_EYE, assume_a="pos"), ValueError, "expm: assume_a must be one of"),
        (lambda: linalg.expm(_EYE, max_squarings=1.5), TypeError, "max_squarings must be an int"),
        (lambda: linalg.funm(_EYE, jnp.exp, disp=False), NotImplementedError, "estimate of the"),
        (lambda: linalg.logm(_EYE, False), NotImplementedError, "linalg.logm: disp=False"),
        (lambda: linalg.funm(_EYE, jnp.sum), ValueError, "func must return an array of"),
    ],
)  # fmt: skip
def test_what_there_is_not(call, error, match):
    with pytest.raises(error, match=match):
        call()
