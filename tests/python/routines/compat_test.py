"""Calls of existing code, in its own form."""

import importlib
import inspect
import os
import pkgutil
import subprocess
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, get_abstract_mesh
from jax.sharding import PartitionSpec as P

import jaxmg

_N = 24
_MATRIX = cases.positive_definite("well", _N, "float64")
_B = np.linspace(1, 2, _N)


def _modes(function, *arguments):
    """Yields the function's results, eager and under jit."""
    yield function(*arguments)
    yield jax.jit(function)(*arguments)


def test_no_version_attribute():
    """NetKet reads the attribute to tell the generations apart, and skips its check if it is
    missing."""
    assert not hasattr(jaxmg, "__version__")
    with pytest.raises(AttributeError, match=r"Use importlib.metadata.version\('jaxmg'\)"):
        jaxmg.__version__  # noqa: B018
    with pytest.raises(AttributeError, match="module 'jaxmg' has no attribute 'getrf'"):
        jaxmg.getrf  # noqa: B018


_NETKET_3_22_SPECS = {
    "3.22.0": ((P("S", None), P(None, None)), (P("S", None),)),
    "3.22.4": (P("S", None), (P("S", None),)),
}


@pytest.mark.core("3.22.0")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("version", _NETKET_3_22_SPECS)
def test_netket_3_22(version, kind):
    mesh = cases.line(2, "S", kind)
    for_potrs, for_syevd = _NETKET_3_22_SPECS[version]

    def solve(A, b):
        x = jaxmg.potrs(A, b, T_A=5, mesh=get_abstract_mesh(), in_specs=for_potrs)
        return x.squeeze(1)

    def diagonalise(A):
        return jaxmg.syevd(A, T_A=5, mesh=get_abstract_mesh(), in_specs=for_syevd)

    with cases.context(mesh):
        A, b = cases.shard(_MATRIX, mesh, "S", None), cases.shard(_B[:, None], mesh)
        for x in _modes(solve, A, b):
            cases.check_potrs(_MATRIX, x, _B)
        for w, V in _modes(diagonalise, A):
            cases.check_syevd(_MATRIX, w, V)


@pytest.mark.core("2-explicit")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("mesh_axes", [1, 2])
def test_netket_3_23(mesh_axes, kind):
    mesh = cases.line(4, "S", kind) if mesh_axes == 1 else cases.grid(kind)

    def solve(A, b):
        _, x, _ = jaxmg.potrs_shardmap_ctx(A, b, T_A=4096)
        return x

    def diagonalise(A):
        _, w, V, _ = jaxmg.syevd_shardmap_ctx(A, T_A=512)
        return w, V

    with cases.context(mesh):
        entries = ("S", None) if mesh_axes == 1 else ("r", "c")
        A, b = cases.shard(_MATRIX, mesh, *entries), cases.shard(_B, mesh)
        for x in _modes(solve, A, b):
            cases.check_potrs(_MATRIX, x, _B)
        for w, V in _modes(diagonalise, A):
            cases.check_syevd(_MATRIX, w, V)


def test_0_0_9_positional():
    mesh = cases.line(2)
    a, b, specs = cases.shard(_MATRIX, mesh, "r", None), jnp.asarray(_B), P("r", None)
    cases.check_potrs(_MATRIX, jaxmg.potrs(a, b, 3, mesh, specs), _B)
    x, status = jaxmg.potrs(a, b, 3, mesh, (specs,), True, True)
    cases.check_potrs(_MATRIX, x, _B)
    assert status.dtype == np.int32 and status.shape == ()
    cases.check_potri(_MATRIX, jaxmg.potri(a, 3, mesh, [specs]))
    inverse, status = jaxmg.potri(a, 3, mesh, specs, True, True)
    cases.check_potri(_MATRIX, inverse)
    w, v, status = jaxmg.syevd(a, 3, mesh, specs, True, True, True)
    cases.check_syevd(_MATRIX, w, v)
    w = jaxmg.syevd(a, 3, mesh, specs, False)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(_MATRIX), rtol=1e-12)
    jaxmg.verify_cyclic(a, jaxmg.cyclic_1d(a, 3, mesh, specs, True), 3)


def test_0_0_9_local_positional():
    mesh = cases.line(2)
    a = cases.shard(_MATRIX, mesh, "r", None)

    def local(a, b):
        x, status = jaxmg.potrs_shardmap_ctx(a, b, 3, True)
        inverse, _ = jaxmg.potri_shardmap_ctx(a, 3, True)
        w, v, _ = jaxmg.syevd_shardmap_ctx(a, 3, True, True)
        (alone, _) = jaxmg.syevd_shardmap_ctx(a, 3, False, True)
        return x, status, inverse, w, v, alone

    rows = P("r", None)
    run = jax.shard_map(
        local, mesh=mesh, in_specs=(rows, P()),
        out_specs=(P(), P(), rows, P(), P(None, "r"), P()), check_vma=False,
    )  # fmt: skip
    x, status, inverse, w, v, alone = jax.jit(run)(a, _B)
    cases.check_potrs(_MATRIX, x, _B)
    assert status.shape == (1,)
    cases.check_potri(_MATRIX, jaxmg.potri_symmetrize(inverse))
    cases.check_syevd(_MATRIX, w, v)
    np.testing.assert_allclose(alone, w, rtol=1e-12)


@pytest.mark.parametrize("suffix", ["shardmap_ctx", "jit_ctx"])
def test_1_4_1_global_contract(suffix):
    """Outside a shard_map, the same name takes global arrays and returns the work array first."""
    mesh = cases.line(2)
    a, specs = cases.shard(_MATRIX, mesh, "r", None), P("r", None)
    potrs, syevd = (getattr(jaxmg, f"{name}_{suffix}") for name in ("potrs", "syevd"))

    def run(a, b):
        return (
            potrs(a, b, 3, mesh, specs),
            potrs(a, b, 3, mesh, in_specs=specs, return_logdet=True),
            syevd(a, 3, mesh, specs),
            syevd(a, 3, mesh, specs, return_eigenvectors=False),
        )

    for both in _modes(run, a, _B):
        (work, x, _), (_, x2, logdet, _), (_, w, v, _), (_, alone, _) = both
        assert work.shape == a.shape and work.dtype == a.dtype
        for each in both:  # as JAXMg 1.4.1 returns it under these names
            assert each[-1].dtype == np.int32
            assert (each[-1][0] if suffix == "shardmap_ctx" else each[-1]) == 0
        cases.check_potrs(_MATRIX, x, _B)
        cases.check_potrs(_MATRIX, x2, _B)
        np.testing.assert_allclose(logdet, np.linalg.slogdet(_MATRIX)[1], rtol=1e-12)
        cases.check_syevd(_MATRIX, w, v)
        np.testing.assert_allclose(alone, w, rtol=1e-12)


@cases.kinds
@pytest.mark.parametrize("spec", [("r",), ("r", None), (None, "c"), ("r", "c")], ids=str)
def test_1_4_1_calls(spec, kind):
    """Positional arguments as in 1.4.1, for each way to shard A there."""
    mesh, specs = cases.grid(kind), P(*spec)
    a = jax.device_put(_MATRIX, NamedSharding(mesh, specs))

    x, status = jaxmg.potrs(a, _B, 3, mesh, specs, return_status=True, pad=True, donate=False)
    cases.check_potrs(_MATRIX, x, _B)
    assert status == 0
    w, v = jaxmg.syevd(a, 3, mesh, in_specs=specs, return_eigenvectors=True, donate=False)
    cases.check_syevd(_MATRIX, w, v)
    cases.check_potrs(_MATRIX, jaxmg.lu_solve(a, _B, 3, mesh, specs, donate=False), _B)
    cases.check_potrs(_MATRIX, jaxmg.least_squares(a, _B, 3, mesh, specs, donate=False), _B)
    q, r = jaxmg.qr(a, 3, mesh, in_specs=specs, donate=False)
    np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), _MATRIX, atol=1e-12)


def test_1_4_1_status_by_index():
    """jnp.ravel(status)[0] reads a scalar status and one of shape (1,)."""
    mesh, specs = cases.line(2), P("r", None)
    a = cases.shard(_MATRIX, mesh, "r", None)
    scalars = (
        jaxmg.potrs(a, _B, 3, mesh, specs, return_status=True)[-1],
        jaxmg.syevd(a, 3, mesh, specs, return_status=True)[-1],
        jaxmg.lu_solve(a, _B, 3, mesh, specs, return_status=True)[-1],
        jaxmg.least_squares(a, _B, 3, mesh, specs, return_status=True)[-1],
        jaxmg.qr(a, 3, mesh, specs, return_status=True)[-1],
    )
    for status in scalars:
        with pytest.raises(IndexError, match="Too many indices"):
            status[0]
    vectors = (
        jaxmg.gesvd(a, 3, mesh, specs, return_status=True)[-1],
        jaxmg.polar(a, 3, mesh, specs, return_status=True)[-1],
    )
    assert all(status.shape == (1,) for status in vectors)
    assert all(jnp.ravel(status)[0] == 0 for status in (*scalars, *vectors))


def test_x64_is_left_alone():
    program = "import jax, jaxmg; print(jax.config.jax_enable_x64)"
    environment = {key: value for key, value in os.environ.items() if key != "JAX_ENABLE_X64"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_potri_shardmap_ctx_takes_global_arrays():
    mesh = cases.line(2)
    for inverse, status in _modes(
        lambda a: jaxmg.potri_shardmap_ctx(a, 3, mesh, P("r", None)),
        cases.shard(_MATRIX, mesh, "r", None),
    ):
        assert status.shape == (1,) and status[0] == 0
        cases.check_potri(_MATRIX, inverse)


_SIGNATURES = {
    "potrs": "a b T_A mesh matrix_specs return_status pad",
    "potri": "a T_A mesh matrix_specs return_status pad",
    "syevd": "a T_A mesh matrix_specs return_eigenvectors return_status pad",
    "potrs_shardmap_ctx": "a b T_A mesh matrix_specs",
    "potrs_jit_ctx": "a b T_A mesh matrix_specs",
    "syevd_shardmap_ctx": "a T_A mesh matrix_specs",
    "syevd_jit_ctx": "a T_A mesh matrix_specs",
    "cyclic_1d": "a T_A mesh in_specs pad",
    "pad_rows": "a padding",
    "unpad_rows": "a padding",
    "calculate_padding": "shard_size T_A",
    "get_cols_cyclic": "N N_batch T_A num_devices",
    "verify_cyclic": "A A_cyclic T_A",
    "plot_block_to_cyclic": "N T_A ndev N_rows",
    "potri_symmetrize": "a",
}


@pytest.mark.parametrize("name", _SIGNATURES)
def test_positional_arguments(name):
    parameters = inspect.signature(getattr(jaxmg, name)).parameters.values()
    positional = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert positional == _SIGNATURES[name].split()


def test_no_public_name_hides_a_module():
    """If names clashed, ``import jaxmg.potrs`` would be a module or a function, by import order."""
    names = [module.name for module in pkgutil.iter_modules(jaxmg.__path__)]
    assert "_routines" in names and not set(names) & set(jaxmg.__all__)
    for name in set(names) - {"__main__", "lineax", "optax"}:  # extras: packages may be missing
        assert importlib.import_module(f"jaxmg.{name}") is getattr(jaxmg, name)


@pytest.mark.parametrize("name", jaxmg.__all__)
def test_an_editor_sees_every_argument(name):
    parameters = inspect.signature(getattr(jaxmg, name)).parameters.values()
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = [parameter.name for parameter in parameters if parameter.kind in anything]
    assert found == (["parameters"] if name == "Tiles" else [])
    assert inspect.getdoc(getattr(jaxmg, name))


_RECTANGLE = np.random.default_rng(1).standard_normal((12, 8))


def _check_gesvd(u, s, vh):
    np.testing.assert_allclose(u[:, :8] * s @ vh, _RECTANGLE, atol=1e-12)


@pytest.mark.extended
def test_1_4_1_gesvd_and_polar():
    mesh, specs = cases.line(2), P("r", None)
    a = cases.shard(_RECTANGLE, mesh, "r", None)

    def run(a):
        return {
            "both": jaxmg.gesvd(a, 3, mesh, specs, return_status=True),
            "full": jaxmg.gesvd(a, 3, mesh, in_specs=specs, full_matrices=True),
            "u": jaxmg.gesvd(a, 3, mesh, specs, compute_vh=False),
            "vh": jaxmg.gesvd(a, 3, mesh, specs, compute_u=False, return_status=True),
            "s": jaxmg.gesvd(a, 3, mesh, specs, compute_u=False, compute_vh=False),
            "polar": jaxmg.polar(a, 3, mesh, specs, return_status=True),
            "unitary": jaxmg.polar(a, 3, mesh, in_specs=specs, compute_h=False),
        }

    results = jax.jit(run)(a)
    u, s, vh, status = results["both"]
    _check_gesvd(u, s, vh)
    assert status.dtype == np.int32 and status[0] == 0
    assert results["full"][0].shape == (12, 12)
    _check_gesvd(*results["full"])
    _check_gesvd(*results["u"], vh)
    _check_gesvd(u, *results["vh"][:2])
    np.testing.assert_allclose(results["s"], s, rtol=1e-12)
    unitary, h, status = results["polar"]
    np.testing.assert_allclose(unitary @ h, _RECTANGLE, atol=1e-12)
    np.testing.assert_allclose(unitary, results["unitary"], atol=1e-12)
    assert status[0] == 0


@pytest.mark.extended
def test_1_4_1_status_and_donation():
    a = jnp.asarray(_RECTANGLE).at[0, 0].set(np.nan)
    u, s, vh, status = jaxmg.gesvd(a, return_status=True, donate=True)
    assert a.is_deleted() and status[0] == -1 and np.isnan(s).all()
    with pytest.raises(TypeError, match="^polar: a must be .* list"):
        jaxmg.polar([[1.0]])
    with pytest.raises(ValueError, match="^gesvd: T_A, the tile width"):
        jaxmg.gesvd(_RECTANGLE, 0)


@pytest.mark.extended
def test_1_4_1_global_contract_of_other_routines():
    mesh, specs = cases.line(2), P("r", None)
    square, b = cases.shard(_MATRIX, mesh, "r", None), jnp.asarray(_B)
    tall, c = cases.shard(_RECTANGLE, mesh, "r", None), jnp.ones(12)

    def run(square, b, tall, c):
        return (
            jaxmg.lu_solve_shardmap_ctx(square, b, 3, mesh, specs),
            jaxmg.least_squares_shardmap_ctx(tall, c, 3, mesh, in_specs=specs),
            jaxmg.qr_shardmap_ctx(tall, 3, mesh, specs),
            jaxmg.polar_shardmap_ctx(tall, 3, mesh, specs),
            jaxmg.gesvd_shardmap_ctx(tall, 3, mesh, specs),
        )

    results = jax.jit(run)(square, b, tall, c)
    solved, minimized, (q, r, _), (u, h, _), (work, *svd, _) = results
    cases.check_potrs(_MATRIX, solved[1], _B)
    x = np.linalg.lstsq(_RECTANGLE, np.ones(12))[0]
    np.testing.assert_allclose(minimized[2], x, atol=1e-12)
    np.testing.assert_allclose(minimized[1][:8], x, atol=1e-12)
    assert minimized[1].shape == (12,) and work.shape == (12, 8)
    np.testing.assert_allclose(q @ r, _RECTANGLE, atol=1e-12)
    np.testing.assert_allclose(u @ h, _RECTANGLE, atol=1e-12)
    _check_gesvd(*svd)
    assert all(each[-1][0] == 0 for each in results)


class _Driver:
    """Replaces CUDA's driver: GPU 0 supports virtual memory management."""

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, number, ordinal):
        number._obj.value = ordinal
        return 0 if ordinal == 0 else 101

    def cuDeviceGetAttribute(self, value, attribute, number):
        value._obj.value = attribute == 102
        return 0


def test_1_4_1_device_supports_vmm(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: _Driver())
    assert jaxmg.device_supports_vmm() is True
    with pytest.raises(RuntimeError, match="cuDeviceGet fails with CUDA's error 101 for GPU 3"):
        jaxmg.device_supports_vmm(3)

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with pytest.raises(RuntimeError, match="there is no CUDA driver: libcuda.so.1"):
        jaxmg.device_supports_vmm()
