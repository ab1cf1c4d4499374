"""Arguments that are refused, or accepted, before anything is compiled: arrays without memory,
masked arrays, scalars, integers of other types. Also the function that an error names."""

import functools
import inspect
import os
import pickle
import re
import subprocess
import sys
import traceback

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from routines import ROUTINES

import jaxmg
from jaxmg import _compat, _internals

_N = 6
_A = cases.positive_definite("well", _N, "float64")
_B = np.ones(_N)


def _a():
    return jnp.asarray(_A.copy())


def _b():
    return jnp.asarray(_B.copy())


def _identity(rows, columns):
    return (rows[:, None] == columns).astype("float64")


def _call_row(routine):
    """Returns a call of a routine of the table, and the arguments that it takes. If the routine
    takes a factor, the call takes none for the matrix and uses a factor of _A."""

    def call(a, b):
        matrix = _A if routine.on_factor else a
        arrays = {"a": matrix, "m": _A, "g": matrix, "b": b}
        return routine.call(jaxmg, routine.make_operands(jaxmg, arrays.get))

    return call, "".join({"g": "a"}.get(kind, kind) for kind in routine.takes if kind in "gab")


# Name -> (function of a matrix and right-hand sides, the arguments that it takes). These are the
# rows of the table, by their functions, and others.
_CALLS = {
    routine.function if name == routine.function else f"{routine.function}({name})": _call_row(
        routine
    )
    for name, routine in ROUTINES.items()
} | {
    "potrs_jit_ctx": (lambda a, b: jaxmg.potrs_jit_ctx(a, b), "ab"),
    "potri_shardmap_ctx": (lambda a, b: jaxmg.potri_shardmap_ctx(a), "a"),
    "gesv_shardmap_ctx": (lambda a, b: jaxmg.gesv_shardmap_ctx(a, b), "ab"),
    "getri_shardmap_ctx": (lambda a, b: jaxmg.getri_shardmap_ctx(a), "a"),
    "potri_symmetrize": (lambda a, b: jaxmg.potri_symmetrize(a), "a"),
    "syevd_jit_ctx": (lambda a, b: jaxmg.syevd_jit_ctx(a), "a"),
    "sygvd(b)": (lambda a, b: jaxmg.sygvd(_A, a), "a"),
    "sygvd_shardmap_ctx": (lambda a, b: jaxmg.sygvd_shardmap_ctx(_A, a), "a"),
    "eigh(all)": (lambda a, b: jaxmg.eigh(a), "a"),
    "eigh(b)": (lambda a, b: jaxmg.eigh(_A, a), "a"),
    "cho_factor(refine=)": (lambda a, b: jaxmg.cho_factor(a, refine="float32"), "a"),
    "gesv(refine=)": (lambda a, b: jaxmg.gesv(a, b, refine="float32"), "ab"),
    "lu_factor(refine=)": (lambda a, b: jaxmg.lu_factor(a, refine="float32"), "a"),
    "CholeskyFactor.from_upper": (lambda a, b: jaxmg.CholeskyFactor.from_upper(a), "a"),
    "verify_cyclic": (lambda a, b: jaxmg.verify_cyclic(a, _A, 2), "a"),
    "verify_cyclic(A_cyclic)": (lambda a, b: jaxmg.verify_cyclic(_A, a, 2), "a"),
    "pad_rows": (lambda a, b: jaxmg.pad_rows(a, 2), "a"),
    "unpad_rows": (lambda a, b: jaxmg.unpad_rows(a, 2), "a"),
    "linalg.solve": (lambda a, b: jaxmg.linalg.solve(a, b), "ab"),
    "linalg.solve_triangular": (lambda a, b: jaxmg.linalg.solve_triangular(a, b), "ab"),
    "linalg.lu_solve": (lambda a, b: jaxmg.linalg.lu_solve((a, np.arange(_N)), b), "ab"),
    "linalg.lu": (lambda a, b: jaxmg.linalg.lu(a), "a"),
    "linalg.lu_factor": (lambda a, b: jaxmg.linalg.lu_factor(a), "a"),
    "linalg.ldl": (lambda a, b: jaxmg.linalg.ldl(a), "a"),
    "linalg.ldl_factor": (lambda a, b: jaxmg.linalg.ldl_factor(a), "a"),
    "linalg.inv": (lambda a, b: jaxmg.linalg.inv(a), "a"),
    "linalg.cholesky": (lambda a, b: jaxmg.linalg.cholesky(a), "a"),
    "linalg.cho_factor": (lambda a, b: jaxmg.linalg.cho_factor(a), "a"),
    "linalg.cho_solve": (lambda a, b: jaxmg.linalg.cho_solve((a, False), b), "ab"),
    "linalg.cg": (lambda a, b: jaxmg.linalg.cg(a, b)[0], "ab"),
    "linalg.pivoted_cholesky": (lambda a, b: jaxmg.linalg.pivoted_cholesky(a, 1), "a"),
    "linalg.cond": (lambda a, b: jaxmg.linalg.cond(a, 1), "a"),
    "linalg.eigh": (lambda a, b: jaxmg.linalg.eigh(a), "a"),
    "linalg.eigsh": (lambda a, b: jaxmg.linalg.eigsh(a, 1), "a"),
    "linalg.eigvalsh": (lambda a, b: jaxmg.linalg.eigvalsh(a), "a"),
    "linalg.slogdet": (lambda a, b: jaxmg.linalg.slogdet(a), "a"),
    "linalg.det": (lambda a, b: jaxmg.linalg.det(a), "a"),
    "linalg.matrix_power": (lambda a, b: jaxmg.linalg.matrix_power(a, 2), "a"),
    "linalg.lstsq": (lambda a, b: jaxmg.linalg.lstsq(a, b), "ab"),
    "linalg.least_squares": (lambda a, b: jaxmg.linalg.least_squares(a, b), "ab"),
    "linalg.qr": (lambda a, b: jaxmg.linalg.qr(a), "a"),
    "linalg.qr_multiply": (lambda a, b: jaxmg.linalg.qr_multiply(a, b, "left"), "ab"),
    "linalg.householder_product": (
        lambda a, b: jaxmg.linalg.householder_product(a, jnp.ones(2)),
        "a",
    ),
    "gaussian_log_likelihood": (
        lambda a, b: jaxmg.gaussian_log_likelihood(jaxmg.Tiles(_identity, (_N, _N), "float64"), b),
        "b",
    ),
    "qr": (lambda a, b: jaxmg.qr(a), "a"),
    "gesvd": (lambda a, b: jaxmg.gesvd(a, compute_u=False, compute_vh=False), "a"),
    "polar": (lambda a, b: jaxmg.polar(a), "a"),
    "linalg.svd": (lambda a, b: jaxmg.linalg.svd(a), "a"),
    "linalg.svdvals": (lambda a, b: jaxmg.linalg.svdvals(a), "a"),
    "linalg.polar": (lambda a, b: jaxmg.linalg.polar(a), "a"),
    "linalg.pinv": (lambda a, b: jaxmg.linalg.pinv(a), "a"),
    "linalg.matrix_rank": (lambda a, b: jaxmg.linalg.matrix_rank(a), "a"),
    "linalg.svd_lowrank": (lambda a, b: jaxmg.linalg.svd_lowrank(a, 1), "a"),
    "linalg.orth": (lambda a, b: jaxmg.linalg.orth(a), "a"),
    "linalg.null_space": (lambda a, b: jaxmg.linalg.null_space(a), "a"),
    "linalg.norm": (lambda a, b: jaxmg.linalg.norm(a), "a"),
    "linalg.sqrtm": (lambda a, b: jaxmg.linalg.sqrtm(a), "a"),
    "linalg.expm": (lambda a, b: jaxmg.linalg.expm(a), "a"),
    "linalg.logm": (lambda a, b: jaxmg.linalg.logm(a), "a"),
    "tree.map": (lambda a, b: jaxmg.tree.map(jnp.sin, a), "a"),
    "tree.eigh": (lambda a, b: jaxmg.tree.eigh(a), "a"),
    "tree.cholesky": (lambda a, b: jaxmg.tree.cholesky(a), "a"),
    "tree.inv": (lambda a, b: jaxmg.tree.inv(a), "a"),
    "tree.qr": (lambda a, b: jaxmg.tree.qr(a), "a"),
    "tree.svd": (lambda a, b: jaxmg.tree.svd(a), "a"),
    "tree.orthogonal_iteration": (lambda a, b: jaxmg.tree.orthogonal_iteration(a, a), "a"),
    "tree.orthogonalize": (lambda a, b: jaxmg.tree.orthogonalize(a), "a"),
    "tree.inverse_pth_root": (lambda a, b: jaxmg.tree.inverse_pth_root(a, 2), "a"),
    "linalg.funm": (lambda a, b: jaxmg.linalg.funm(a, jnp.tanh), "a"),
}
_ARGUMENTS = [
    pytest.param(
        call,
        argument,
        id=f"{name}-{argument}",
        marks=[cases.needs_transformations] if name.startswith("tree.") else [],
    )
    for name, (call, arguments) in _CALLS.items()
    for argument in arguments
]


# The core runs only these also after a warm-up call, since compiling all calls takes long.
_WARM = ("potrs-a", "eigh(all)-a", "linalg.solve-b", "linalg.qr-a", "tree.eigh-a", "lu_factor-a")


def _cold_and_warm():
    found = []
    for argument in _ARGUMENTS:
        cold, warm = f"{argument.id}-cold", f"{argument.id}-warm"
        marks = [*argument.marks, *([] if argument.id in _WARM else [pytest.mark.breadth])]
        found.append(pytest.param(*argument.values, False, id=cold, marks=argument.marks))
        found.append(pytest.param(*argument.values, True, id=warm, marks=marks))
    return found


_both = pytest.mark.parametrize("call, argument, warm", _cold_and_warm())


def test_every_public_function_that_takes_an_array_is_called():
    public = {*jaxmg.__all__, *(f"linalg.{name}" for name in jaxmg.linalg.__all__)}
    public |= {f"tree.{name}" for name in jaxmg.tree.__all__}
    called = {re.sub(r"\(.*", "", name) for name in _CALLS}
    without_arrays = {
        "CholeskyFactor", "LDLFactor", "LUFactor", "RefinedFactor", "RefinedLUFactor", "Plan",
        "QRFactor", "plan", "device_supports_vmm", "export_checks", "from_portable",
        "calculate_padding", "get_cols_cyclic", "plot_block_to_cyclic", "register_handlers",
        "linalg", "linalg.CGInfo", "linalg.CGResult", "linalg.EigshInfo", "linalg.EigshResult",
        "linalg.EighResult", "linalg.PivotedCholeskyResult", "linalg.QRResult", "linalg.SVDResult",
        "linalg.SVDLowRankResult", "linalg.SlogdetResult", "Progress", "progress",
        "HostCholeskyFactor", "HostLUFactor", "HostPlan", "PinnedMemory", "Tiles", "pinned",
    }  # fmt: skip
    local = {name for name in public if name.endswith("_shardmap_ctx")}
    assert public - local - without_arrays <= called


@_both
def test_a_deleted_array_is_refused(call, argument, warm):
    """The call raises an error; JAX 0.10.2 would end the process in a warm call."""
    arrays = {"a": _a(), "b": _b()}
    if warm:
        jax.block_until_ready(call(*arrays.values()))
    arrays[argument].delete()
    with pytest.raises(RuntimeError, match="has been deleted: an earlier call took its memory"):
        call(*arrays.values())


def test_a_donated_array_is_refused():
    for _ in range(2):
        a, b = _a(), _b()
        jaxmg.potrs(a, b, donate=True).block_until_ready()
        with pytest.raises(RuntimeError, match=r"^potrs: a, of shape \(6, 6\), has been deleted"):
            jaxmg.potrs(a, b)
        with pytest.raises(RuntimeError, match=r"^potri: a, of shape \(6, 6\), has been deleted"):
            jaxmg.potri(a, donate=True)


_METHODS = {
    "solve": lambda f: f.solve(_B),
    "solve_triangular": lambda f: f.solve_triangular(_B),
    "matmul": lambda f: f.matmul(_B),
    "logdet": lambda f: f.logdet(),
    "diagonal": lambda f: f.diagonal(),
    "inv": lambda f: f.inv(),
    "upper": lambda f: f.upper(),
    "cho_solve": lambda f: jaxmg.cho_solve(f, _B),
    "linalg.cho_solve": lambda f: jaxmg.linalg.cho_solve(f, _B),
}


@pytest.mark.parametrize("method", _METHODS)
def test_a_factor_of_deleted_arrays_is_refused(method):
    call = _METHODS[method]
    for leaf in ("tiles", "overflow", "_log_det"):
        factor = jax.tree.map(jnp.copy, jaxmg.cho_factor(cases.shard(_A, cases.line(2)), 2))
        jax.block_until_ready(call(factor))
        getattr(factor, leaf).delete()
        with pytest.raises(RuntimeError, match="factor, of shape .*, has been deleted"):
            call(factor)


@pytest.mark.extended
@pytest.mark.parametrize("leaf", ["rows", "tiles", "scale", "size", "status"])
def test_a_refined_factor_of_deleted_arrays_is_refused(leaf):
    factor = jax.tree.map(jnp.copy, jaxmg.cho_factor(_a(), refine="float32"))
    jax.block_until_ready(factor.solve(_B))
    getattr(factor, leaf).delete()
    with pytest.raises(RuntimeError, match="cho_solve: factor, of shape .*, has been deleted"):
        factor.solve(_B)


@pytest.mark.core("potrs", "syevd", "gesv", "linalg.solve", "least_squares")
@_both
def test_a_masked_array_is_refused(call, argument, warm):
    """A masked array is refused also after the same call with a plain array."""
    arrays = {"a": _A.copy(), "b": _B.copy()}
    if warm:
        jax.block_until_ready(call(*arrays.values()))
    arrays[argument] = np.ma.masked_greater(arrays[argument], 1)
    with pytest.raises(TypeError, match="is a masked array, whose mask would be ignored"):
        call(*arrays.values())


def test_a_scalar_is_named():
    with pytest.raises(TypeError, match="b must be a JAX or NumPy array; got a NumPy scalar of ty"):
        jaxmg.potrs(_A, np.float64(3))
    with pytest.raises(TypeError, match="b must be a JAX or NumPy array; got float"):
        jaxmg.potrs(_A, 3.0)


@pytest.mark.parametrize("trans", [1, np.int64(1), np.uint8(1), np.array(1), "T", np.str_("T")])
def test_integers_of_any_type_say_what_to_transpose(trans):
    factor = jaxmg.cho_factor(_A)
    expected = np.linalg.solve(np.linalg.cholesky(_A).T, _B)
    np.testing.assert_allclose(factor.solve_triangular(_B, trans), expected, rtol=1e-12)


@pytest.mark.parametrize("trans", [True, False, np.bool_(True), 3, -1, 1.0, "t", None, (1,)])
def test_other_values_say_nothing_to_transpose(trans):
    factor = jaxmg.cho_factor(_A)
    for method in (factor.solve_triangular, factor.matmul):
        with pytest.raises(ValueError, match="trans must be 0 or 'N'"):
            method(_B, trans)


@pytest.mark.parametrize("function", [jaxmg.eigh, jaxmg.eigvalsh])
@pytest.mark.parametrize("subset", [(True, 2), (0, np.bool_(True)), (False, True)])
def test_booleans_are_no_indices_of_eigenvalues(function, subset):
    with pytest.raises(TypeError, match="subset_by_index must be None or two integers"):
        function(_A, subset_by_index=subset)
    assert len(jaxmg.eigvalsh(_A, subset_by_index=(np.int64(0), np.uint8(2)))) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: jaxmg.plan("potrs", True, "float64"),
        lambda: jaxmg.plan("potrs", 4, "float64", True),
        lambda: jaxmg.plan("potrs", 4, "float64", nrhs=True),
        lambda: jaxmg.pad_rows(_A, True),
        lambda: jaxmg.calculate_padding(4, True),
    ],
)
def test_booleans_are_no_counts(call):
    with pytest.raises(TypeError, match="integer|number of devices"):
        call()


_JITTED = {
    "linalg.inv": lambda a: jaxmg.linalg.inv(a),
    "linalg.expm": lambda a: jaxmg.linalg.expm(a),
    "linalg.eigh": lambda a: jaxmg.linalg.eigh(a),
    "potrs": lambda a: jaxmg.potrs(a, _B),
    "eigh": lambda a: jaxmg.eigh(a),
    "eigvalsh": lambda a: jaxmg.eigvalsh(a),
    "cho_factor": lambda a: jaxmg.cho_factor(a),
    "cyclic_1d": lambda a: jaxmg.cyclic_1d(a, 2),
}


@pytest.mark.parametrize("name", _JITTED)
def test_the_name_of_the_argument_that_is_missing(name):
    cases.devices(2)  # a single device needs no mesh
    with pytest.raises(ValueError, match=f"^{name}: inside jit .*pass mesh= and in_specs=, or"):
        jax.jit(_JITTED[name])(_A)


def _functions_with_specs():
    methods = (
        (f"{kind.__name__}.{name}", getattr(kind, name))
        for kind in (jaxmg.CholeskyFactor, jaxmg.LUFactor, jaxmg.QRFactor)
        for name in ("from_upper", "from_packed")
        if hasattr(kind, name)
    )
    functions = (
        (f"{module.__name__}.{name}", getattr(module, name))
        for module in (jaxmg, jaxmg.linalg, jaxmg.tree)
        for name in module.__all__
        if inspect.isfunction(getattr(module, name))
    )
    for name, function in (*functions, *methods):
        parameters = inspect.signature(function).parameters
        if {"matrix_specs", "in_specs"} & parameters.keys():
            yield pytest.param(parameters, id=name)


@pytest.mark.parametrize("parameters", [*_functions_with_specs()])
def test_both_names_of_the_spec(parameters):
    assert {"matrix_specs", "in_specs"} <= parameters.keys()


_WITH_SPECS = {
    "linalg.inv": lambda **specs: jaxmg.linalg.inv(_A, mesh=cases.line(2), **specs),
    "linalg.solve": lambda **specs: jaxmg.linalg.solve(_A, _B, mesh=cases.line(2), **specs),
    "linalg.det": lambda **specs: jaxmg.linalg.det(_A, mesh=cases.line(2), **specs),
    "tree.inv": lambda **specs: jaxmg.tree.inv([_A, _A], mesh=cases.line(2), **specs),
    "tree.map": lambda **specs: jaxmg.tree.map(jnp.tril, [_A], mesh=cases.line(2), **specs),
    "potrs": lambda **specs: jaxmg.potrs(_A, _B, mesh=cases.line(2), **specs),
    "cyclic_1d": lambda **specs: jaxmg.cyclic_1d(_A, 2, cases.line(2), **specs),
}


@pytest.mark.parametrize("name", _WITH_SPECS)
def test_both_names_of_the_spec_mean_the_same(name):
    if name.startswith("tree.") and not _compat.COMPILES_EXCHANGES:
        pytest.skip("trees need a newer JAX")
    cases.devices(2)
    call, spec = _WITH_SPECS[name], P("r", None)
    by_each = (jax.tree.leaves(call(**{each: spec})) for each in ("in_specs", "matrix_specs"))
    for one, other in zip(*by_each, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.sharding == other.sharding
    with pytest.raises(ValueError, match=f"^{name}: matrix_specs and in_specs are two names"):
        call(in_specs=spec, matrix_specs=spec)


def test_the_name_of_the_spec_that_is_wrong():
    with pytest.raises(TypeError, match="^potrs: in_specs must be a PartitionSpec"):
        jaxmg.potrs(_A, _B, in_specs="r")
    with pytest.raises(TypeError, match="^potrs: matrix_specs must be a PartitionSpec"):
        jaxmg.potrs(_A, _B, matrix_specs="r")
    with pytest.raises(TypeError, match="^linalg.inv: matrix_specs must be a PartitionSpec"):
        jaxmg.linalg.inv(_A, matrix_specs="r")
    with pytest.raises(TypeError, match="^cyclic_1d: in_specs must be a PartitionSpec"):
        jaxmg.cyclic_1d(_A, 2, in_specs="r")
    for name in (
        "inv", "slogdet", "matrix_power", "sqrtm", "logm", "expm", "lu_factor", "cholesky", "qr",
        "svd", "pinv", "orth", "eigh",
    ):  # fmt: skip
        function = getattr(jaxmg.linalg, name)
        args = (_A, 2) if name == "matrix_power" else (_A,)
        for argument in ("in_specs", "matrix_specs"):
            with pytest.raises(TypeError, match=f"^linalg.{name}: {argument} must be a Partition"):
                function(*args, **{argument: "r"})
    # Those of trees know only the merged value, so they name both.
    if _compat.COMPILES_EXCHANGES:
        for argument in ("in_specs", "matrix_specs"):
            with pytest.raises(TypeError, match=r"^tree.inv: in_specs \(or matrix_specs\) must be"):
                jaxmg.tree.inv([_A], **{argument: "r"})


_FLAT = np.ones((4, 5))
_WRONG = {
    "eigh": lambda: jaxmg.eigh(_FLAT),
    "eigh of two": lambda: jaxmg.eigh(_FLAT, _FLAT),
    "eigh of a subset": lambda: jaxmg.eigh(_FLAT, subset_by_index=(0, 1)),
    "eigh of a batch": lambda: jaxmg.eigh(_FLAT[None]),
    "eigh with another dtype": lambda: jaxmg.eigh(_A, _A.astype("float32")),
    "eigh with another backend": lambda: jaxmg.eigh(_A, backend="another"),
    "eigvalsh": lambda: jaxmg.eigvalsh(_FLAT),
    "eigvalsh of two": lambda: jaxmg.eigvalsh(_FLAT, _FLAT),
    "eigvalsh with another tile": lambda: jaxmg.eigvalsh(_A, T_A=0),
    "cho_factor with another mesh": lambda: jaxmg.cho_factor(_A, mesh=3),
    "potrs under jit": lambda: jax.jit(jaxmg.potrs)(_A, _B),
}


@pytest.mark.parametrize("name", _WRONG)
def test_errors_name_the_function_that_was_called(name):
    if name == "potrs under jit":
        cases.devices(2)  # a single device needs no mesh
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=f"^{name.split()[0]}: "):
        _WRONG[name]()


@cases.needs_transformations
@pytest.mark.parametrize(
    "function",
    [
        lambda a: jaxmg.potrs(a, _B).sum(),
        lambda a: jaxmg.potrs(a, _B, refine="float32").sum(),
        lambda a: jaxmg.potri(a).sum(),
        lambda a: jaxmg.eigvalsh(a).sum(),
        lambda a: jaxmg.eigh(a)[0].sum(),
        lambda a: jaxmg.eigh(a, _A)[0].sum(),
    ],
    ids=["potrs", "potrs_refine", "potri", "eigvalsh", "eigh", "eigh_two"],
)
def test_errors_of_derivatives_name_the_function_that_was_called(request, function):
    cases.devices(2)  # a single device needs no mesh
    name = request.node.callspec.id.split("_")[0]
    with pytest.raises(ValueError, match=f"^{name}: inside jit the mesh of a can't be seen"):
        jax.jit(jax.grad(function))(_A)


@pytest.mark.core("None")
@pytest.mark.parametrize("refine", [None, "float32"])
def test_a_factor_in_place_of_c_and_lower(refine):
    factor = jaxmg.cho_factor(_A, refine=refine)
    expected = np.linalg.solve(_A, _B)
    for c in (factor, (factor, True), [factor, False]):
        np.testing.assert_allclose(jaxmg.linalg.cho_solve(c, _B), expected, rtol=1e-12)


@pytest.mark.parametrize("c", [3, None, (1, 2, 3), "F"])
def test_what_is_no_c_and_lower_is_refused(c):
    with pytest.raises(TypeError, match="^linalg.cho_solve: .* a (pair|JAX or NumPy array)"):
        jaxmg.linalg.cho_solve(c, _B)


def test_specs_of_a_mesh_still_have_two_names():
    mesh = cases.line(2)
    a = cases.shard(_A, mesh, "r", None)
    first = jaxmg.potrs(a, _B, 2, mesh, P("r", None))
    np.testing.assert_array_equal(first, jaxmg.potrs(a, _B, 2, mesh, in_specs=P("r", None)))


_FACTOR = functools.cache(lambda: jaxmg.cho_factor(_A))
_RAISING = {
    "eager": lambda: jaxmg.potrs(_A, _B[:3]),
    "jit": lambda: jax.jit(lambda a: jaxmg.eigh(a))(_FLAT),
    "linalg": lambda: jaxmg.linalg.expm(_FLAT),
    "method": lambda: _FACTOR().solve_triangular(_B[:3]),
    "class method": lambda: jaxmg.CholeskyFactor.from_upper(_FLAT),
    "helper": lambda: jaxmg.pad_rows(_A, -1),
}


def _files(call):
    """Returns the folders of the frames in the traceback of the call's error."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    found = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    boundary = inspect.getsourcefile(_internals.api_boundary)
    return {os.path.dirname(file) for file in found if file != boundary}


@pytest.mark.parametrize("name", _RAISING)
def test_an_error_shows_the_frames_of_the_caller_alone(name):
    here, package = os.path.dirname(__file__), os.path.dirname(jaxmg.__file__)
    assert _files(_RAISING[name]) == {here}
    filtering = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        assert any(folder.startswith(package) for folder in _files(_RAISING[name]))
    finally:
        jax.config.update("jax_traceback_filtering", filtering)


def test_functions_are_what_their_modules_have():
    """A function is the attribute of its module, so that pickle works, and has a signature that
    tools can read."""
    for name in jaxmg.__all__:
        value = getattr(jaxmg, name)
        if inspect.isfunction(value):
            assert pickle.loads(pickle.dumps(value)) is value
            assert "args" not in inspect.signature(value).parameters


@pytest.mark.extended
@cases.one_process("it starts one that knows nothing of this job")
def test_frames_are_shown_where_jax_has_no_way_to_hide_them():
    code = """
import importlib
import jax._src.traceback_util as util
from jaxmg import _compat, _internals
del util.api_boundary
importlib.reload(_internals)
assert _internals.api_boundary(max) is max
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
