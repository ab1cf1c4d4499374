"""Invalid calls raise before any computation starts, and their errors say what to do."""

import itertools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat
from jaxmg._plugin import plugins

_A = cases.positive_definite("well", 6, "float64")
_B = np.ones(6)
_DTYPES = "the supported dtypes are float32, float64, complex64, complex128"


def _mesh():
    return cases.line(2)


_VALUE_ERRORS = {
    "not square": (
        lambda: jaxmg.potrs(np.ones((6, 5)), _B),
        "a must be a square matrix of shape (n, n); it has shape (6, 5)",
    ),
    "one dimension": (lambda: jaxmg.potri(_B), "a must be a square matrix .* shape (6,)"),
    "three dimensions": (
        lambda: jaxmg.syevd(_A[None, :5]),
        "a must be a square matrix.* shape (1, 5, 6)",
    ),
    "rows of b": (
        lambda: jaxmg.potrs(_A, np.ones(5)),
        "b must have shape (6,) or (6, nrhs) for a of shape (6, 6); it has shape (5,)",
    ),
    "dimensions of b": (lambda: jaxmg.potrs(_A, np.ones((6, 1, 1))), "b must have .* (6, 1, 1)"),
    "tile 0": (lambda: jaxmg.potri(_A, 0), "T_A, the tile width, must be at least 1; got 0"),
    "tile -1": (lambda: jaxmg.syevd(_A, T_A=-1), "T_A, .* must be at least 1; got -1"),
    "tile 2**63": (
        lambda: jaxmg.potrs(_A, _B, 2**63),
        "T_A, the tile width, must be below 2**63 .*; got 9223372036854775808",
    ),
    "tile 10**30 under jit": (
        lambda: jax.jit(lambda a: jaxmg.potri(a, 10**30, _mesh(), P("r")))(_A),
        "potri: T_A, the tile width, must be below 2**63",
    ),
    "tile of cyclic_1d": (
        lambda: jaxmg.cyclic_1d(_A, 2**62, _mesh()),
        "must be below 2**63 (cyclic_1d: T_A times the ranks); got 9223372036854775808",
    ),
    "unknown axis": (
        lambda: jaxmg.potrs(_A, _B, 2, _mesh(), P("x", None)),
        "names axis 'x', which the mesh doesn't have; its axes are ('r',)",
    ),
    "axis twice": (
        lambda: jaxmg.potri(_A, 2, _mesh(), P(("r", "r"), None)),
        "names axis 'r' twice; an axis shards one dimension",
    ),
    "long spec": (
        lambda: jaxmg.syevd(_A, 2, _mesh(), P("r", None, None)),
        "the spec of a matrix has at most 2 entries; got .* with 3",
    ),
    "two specs": (
        lambda: jaxmg.potrs(_A, _B, 2, _mesh(), P("r"), in_specs=P("r")),
        "matrix_specs and in_specs are two names of one argument",
    ),
    "padding": (
        lambda: jaxmg.potrs(_A[:5, :5], _B[:5], 2, _mesh(), pad=False),
        "with pad=False the number of rows of a, 5, must be a multiple of 2 (ranks)",
    ),
    "unknown backend": (
        lambda: jaxmg.potrs(_A, _B, backend="magma"),
        "backend must be one of 'auto', 'native', 'cusolvermg', 'cusolvermp'; got 'magma'",
    ),
    "unknown precision": (
        lambda: jaxmg.potrs(_A, _B, precision="half"),
        "precision must be one of None, 'highest', 'float32', ",
    ),
    "precision of float64": (
        lambda: jaxmg.potri(_A, precision="tf32"),
        "precision='tf32' is for float32 and complex64; a has dtype float64",
    ),
    "columns of cyclic_1d": (
        lambda: jaxmg.cyclic_1d(_A, 1, _mesh(), P(None, "r")),
        "a must be sharded by rows, as P(axis, None); got .*",
    ),
    "mesh under jit": (
        lambda: jax.jit(jaxmg.potrs)(_A, _B),
        "inside jit the mesh of a can't be seen; pass mesh= and in_specs=",
    ),
    "abstract mesh of nothing": (
        lambda: jaxmg.potrs(_A, _B, 2, _mesh().abstract_mesh, P("r")),
        "mesh is abstract .* pass a jax.sharding.Mesh, or run in jax.set_mesh(mesh)",
    ),
}

_TYPE_ERRORS = {
    "list": (lambda: jaxmg.potrs([[1.0]], _B), "a must be a JAX or NumPy array; got list"),
    "integers": (lambda: jaxmg.potrs(_A.astype(int), _B), f"a has dtype int64; {_DTYPES}"),
    "booleans": (lambda: jaxmg.potri(_A > 0), f"a has dtype bool; {_DTYPES}"),
    "half": (lambda: jaxmg.syevd(_A.astype("float16")), f"a has dtype float16; {_DTYPES}"),
    "bfloat16": (
        lambda: jaxmg.syevd(jnp.asarray(_A, jnp.bfloat16)),
        f"a has dtype bfloat16; {_DTYPES}",
    ),
    "integers in b": (lambda: jaxmg.potrs(_A, _B.astype(int)), f"b has dtype int64; {_DTYPES}"),
    "mixed": (
        lambda: jaxmg.potrs(_A, _B.astype("float32")),
        "a and b must have one dtype; a has float64 and b has float32",
    ),
    "tile 1.5": (lambda: jaxmg.potrs(_A, _B, 1.5), "T_A, .* must be an integer .*; got 1.5"),
    "tile True": (lambda: jaxmg.potrs(_A, _B, True), "T_A, .* must be an integer .*; got True"),
    "mesh": (
        lambda: jaxmg.potrs(_A, _B, 2, "r"),
        "mesh must be a jax.sharding.Mesh or AbstractMesh; got str",
    ),
    "spec": (
        lambda: jaxmg.potrs(_A, _B, 2, _mesh(), "r"),
        "matrix_specs must be a PartitionSpec, or a list or tuple that starts with A's; got 'r'",
    ),
}


def _pattern(message):
    return re.escape(message).replace(r"\.\*", ".*")


@pytest.mark.parametrize("name", _VALUE_ERRORS)
def test_values(name):
    call, message = _VALUE_ERRORS[name]
    if name in ("mesh under jit", "abstract mesh of nothing"):
        cases.devices(2)
    with pytest.raises(ValueError, match=_pattern(message)):
        call()


@pytest.mark.parametrize("name", _TYPE_ERRORS)
def test_types(name):
    call, message = _TYPE_ERRORS[name]
    with pytest.raises(TypeError, match=_pattern(message)):
        call()


def test_messages_name_the_routine():
    for name in ("potri", "syevd"):
        with pytest.raises(ValueError, match=f"^{name}: "):
            getattr(jaxmg, name)(np.ones((2, 3)))


def test_backend_of_another_platform():
    if jax.devices()[0].platform != "cpu":
        pytest.skip("about CPU devices")
    for name in ("cusolvermg", "cusolvermp"):
        message = f"backend '{name}' is not available on platform 'cpu'; it has 'native'"
        with pytest.raises(ValueError, match=message):
            jaxmg.potrs(_A, _B, backend=name)
        for function in ("svd", "svdvals", "polar"):
            with pytest.raises(ValueError, match=f"^linalg.{function}: {message}"):
                getattr(jaxmg.linalg, function)(_A, backend=name)


def test_backends_of_singular_values():
    for function in ("svd", "svdvals", "polar"):
        message = f"^linalg.{function}: backend must be one of 'auto', .*; got 'magma'"
        with pytest.raises(ValueError, match=message):
            getattr(jaxmg.linalg, function)(_A, backend="magma")
    with pytest.raises(ValueError, match="^linalg.svd: hermitian=True takes backend 'auto' or "):
        jaxmg.linalg.svd(_A, hermitian=True, backend="cusolvermp")


def test_a_backend_without_a_determinant():
    message = "return_logdet=True needs backend 'native' .*; got 'cusolvermp', which gives no"
    for name in ("gesv", "gesv_shardmap_ctx"):
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            getattr(jaxmg, name)(_A, _B, backend="cusolvermp", return_logdet=True)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_double_precision_needs_64_bit_mode(dtype):
    a = _A.astype(dtype)
    resident = jnp.asarray(a)
    jax.config.update("jax_enable_x64", False)
    try:
        for matrix in (a, resident):
            with pytest.raises(ValueError, match="jax.config.update.'jax_enable_x64', True"):
                jaxmg.potri(matrix)
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize(
    "platform, message",
    [
        ("cpu", "no jaxmg plugin is installed .* `pip install --find-links WHEELS 'jaxmg.cpu."),
        ("gpu", "install it with .*'jaxmg.cuda13.[^`]*` or `.*'jaxmg.cuda12.[^`]*`, where WHEELS"),
        ("tpu", "jaxmg has no plugin for platform 'tpu'"),
    ],
)
def test_no_plugin(monkeypatch, platform, message):
    monkeypatch.setattr(plugins, "entry_points", dict)
    monkeypatch.setattr(plugins, "_loaded", {})
    with pytest.raises(RuntimeError, match=message):
        plugins.load(platform)


def test_plugin_that_fails_to_load_is_tried_again(monkeypatch):
    class Broken:
        name, value, dist, loads = "cpu", "jaxmg_plugin_cpu", None, 0

        def load(self):
            self.loads += 1
            raise ImportError("libopenblas.so: cannot open shared object file")

    point = Broken()
    monkeypatch.setattr(plugins, "entry_points", lambda: {"cpu": [point]})
    monkeypatch.setattr(plugins, "_loaded", {})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't be loaded: libopenblas.so"):
            plugins.load("cpu")
    assert point.loads == 2


_GLOBAL_CALLS = {
    "potrs": lambda a: jaxmg.potrs(a, a[0]),
    "potri": lambda a: jaxmg.potri(a),
    "syevd": lambda a: jaxmg.syevd(a),
    "cyclic_1d": lambda a: jaxmg.cyclic_1d(a, 2),
}


@pytest.mark.parametrize("spec", [P(), P("r", None)], ids=["square", "block"])
@pytest.mark.parametrize("routine", _GLOBAL_CALLS)
def test_global_call_inside_shard_map(routine, spec):
    local = _GLOBAL_CALLS[routine]
    call = jax.shard_map(local, mesh=_mesh(), in_specs=spec, out_specs=spec, check_vma=False)
    instead = f"use jaxmg.{routine}_shardmap_ctx there"
    if routine == "cyclic_1d":
        instead = "call it outside, on the global array"
        assert not hasattr(jaxmg, "cyclic_1d_shardmap_ctx")
    with pytest.raises(ValueError, match=f"^{routine}: .* inside a shard_map; {instead}"):
        jax.jit(call)(_A)


_TRANSFORMATIONS = {
    "vmap": (lambda f, x: jax.vmap(f)(np.stack([x, x])), "batched by jax.vmap.*lax.map"),
    "vmap of grad": (
        lambda f, x: jax.vmap(jax.grad(lambda x: jnp.sum(f(x))))(np.stack([x, x])),
        "(differentiated|batched)",
    ),
    "jit of vmap": (lambda f, x: jax.jit(jax.vmap(f))(np.stack([x, x])), "batched by jax.vmap"),
    "grad": (lambda f, x: jax.grad(lambda x: jnp.sum(f(x)))(x), "differentiated .*custom_vjp"),
    "jit of grad": (lambda f, x: jax.jit(jax.grad(lambda x: jnp.sum(f(x))))(x), "differentiated"),
    "jvp": (lambda f, x: jax.jvp(f, (x,), (x,)), "differentiated"),
    "linearize": (lambda f, x: jax.linearize(f, x), "differentiated"),
    "vjp": (lambda f, x: jax.vjp(f, x), "differentiated"),
    "jacfwd": (lambda f, x: jax.jacfwd(f)(x), "(differentiated|batched)"),
    "hessian": (lambda f, x: jax.hessian(f)(x), "(differentiated|batched)"),
}


def _local(f):
    """Returns ``f`` of a matrix that every device has, called as in a caller's shard_map."""
    return jax.shard_map(f, mesh=cases.line(1), in_specs=P(), out_specs=P(), check_vma=False)


_REFUSED = {
    "cyclic_1d": (lambda a: jaxmg.cyclic_1d(a, 2), "cyclic_1d"),
    "potrs": (_local(lambda a: jaxmg.potrs_shardmap_ctx(a, _B)[0]), "potrs_shardmap_ctx"),
    "potri": (_local(lambda a: jaxmg.potri_shardmap_ctx(a)[0]), "potri_shardmap_ctx"),
    "syevd": (_local(lambda a: jaxmg.syevd_shardmap_ctx(a)[0]), "syevd_shardmap_ctx"),
    "sygvd": (_local(lambda a: jaxmg.sygvd_shardmap_ctx(a, _A)[0]), "sygvd_shardmap_ctx"),
}


@pytest.mark.parametrize(
    "name, routine",
    [
        (name, routine)
        for name, routine in itertools.product(_TRANSFORMATIONS, _REFUSED)
        if routine == "cyclic_1d" or not _compat.TRANSFORMS
    ],
)
def test_transformations_that_are_not_there(name, routine):
    (transform, message), (call, named) = _TRANSFORMATIONS[name], _REFUSED[routine]
    with pytest.raises(NotImplementedError, match=f"^{named}: a is .*{message}"):
        transform(call, _A)


_A_SHARD = pytest.param("a shard", marks=cases.one_process("each has another one"))


@pytest.mark.parametrize("source", ["itself", "shared", _A_SHARD, "one device"])
def test_right_hand_side_in_donated_memory(source):
    mesh = cases.line(1) if source == "one device" else _mesh()
    a = cases.shard(_A, mesh, *((None, "r") if source == "a shard" else ("r", None)))
    b = {
        "itself": lambda: a,
        "one device": lambda: a,
        "shared": lambda: jax.device_put(a, a.sharding),
        "a shard": lambda: a.addressable_shards[0].data,
    }[source]()
    with pytest.raises(ValueError, match="b shares the memory of a, which donate=True overwrites"):
        jaxmg.potrs(a, b, 2, donate=True)
    assert not a.is_deleted()
    cases.check_potrs(_A, jaxmg.potrs(a, b, 2), np.asarray(b))
    cases.check_potrs(_A, jaxmg.potrs(a, b.copy(), 2, donate=True), _A[:, : b.shape[1]])


@pytest.mark.parametrize(
    "block, message",
    [
        ((1, 6), r"has shape \(ceil\(n / P\), n\); \(1, 6\) fits no P of the mesh {'r': 2}"),
        ((6,), r"a must be a local block of shape \(rows, n\); got \(6,\)"),
    ],
)
def test_local_blocks(block, message):
    mesh = _mesh()
    call = jax.shard_map(
        lambda a: jaxmg.potri_shardmap_ctx(a)[0], mesh=mesh, in_specs=P(), out_specs=P()
    )
    with pytest.raises(ValueError, match=message):
        jax.jit(call)(np.ones(block))


def test_mixed_axis_types():
    kinds = (AxisType.Auto, AxisType.Explicit)
    mesh = Mesh(cases.grid().devices, ("r", "c"), axis_types=kinds)
    with pytest.raises(ValueError, match="must be all Auto or all Explicit"):
        jaxmg.potrs(_A, _B, mesh=mesh)


def test_partly_manual_shard_map():
    mesh = cases.grid()
    call = jax.shard_map(
        lambda a: jaxmg.potri_shardmap_ctx(a)[0],
        mesh=mesh, in_specs=P("r"), out_specs=P("r"), axis_names={"r"}, check_vma=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="all axes must be manual, but axis 'c' of size 2 is not"):
        jax.jit(call)(np.ones((8, 8)))


def test_ambiguous_local_block():
    mesh = Mesh(np.array(cases.devices(4)).reshape(2, 2), ("r", "c"))
    matrix = cases.positive_definite("well", 8, "float64")
    a = cases.shard(matrix, mesh, "c", None)

    def invert(**options):
        def local(a):
            return jaxmg.potri_shardmap_ctx(a, 3, **options)[0]

        specs = {"in_specs": P("c", None), "out_specs": P("c", None)}
        return jax.jit(jax.shard_map(local, mesh=mesh, check_vma=False, **specs))(a)

    with pytest.raises(ValueError, match=r"could be sharded over any of .* pass in_specs=P\(axis"):
        invert()
    upper = invert(in_specs=P("c", None))
    expected = np.triu(np.linalg.inv(matrix))
    np.testing.assert_allclose(upper, expected, rtol=0, atol=1e-13)
