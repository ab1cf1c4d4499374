"""Derivatives inside the caller's shard_map, against JAX's own on one device."""

import functools
import itertools
import re

import cases
import jax
import jax.numpy as jnp
import local_cases
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg

pytestmark = cases.needs_transformations

_MESHES = [{"r": 1}, {"r": 2}, {"r": 4}]


# The dtypes are distributed over the other parameters.
_CASES = [
    (name, sizes, check_vma, jitted, cases.DTYPES[(i + i // 4) % 4])
    for i, (name, sizes, check_vma, jitted) in enumerate(
        itertools.product(local_cases.FUNCTIONS, _MESHES, [True, False], [True, False])
    )
]


def _parameters(core):
    """Parametrizes by the cases. Cases without ``core(name, ranks, check_vma)`` are breadth, and so
    are eager ones, which compile each step separately."""
    found = []
    for name, sizes, check_vma, jitted, dtype in _CASES:
        ranks = sizes["r"]
        marks = () if jitted and core(name, ranks, check_vma) else (pytest.mark.breadth,)
        marks += () if jitted else (cases.one_process("it takes long"),)
        words = "tracked" if check_vma else "untracked", "jit" if jitted else "eager", dtype
        label = "-".join([name, str(ranks), *words])
        found.append(pytest.param(name, sizes, check_vma, jitted, dtype, id=label, marks=marks))
    return pytest.mark.parametrize("name, sizes, check_vma, jitted, dtype", found)


def _wrap(jitted, function):
    return jax.jit(function) if jitted else function


@_parameters(lambda *case: case in [("eigenvalues", 2, True)])
def test_jvp(name, sizes, check_vma, jitted, dtype):
    arguments, directions = local_cases.make_arguments(7, dtype)
    ours, theirs = local_cases.make_functions(name, local_cases.make_mesh(**sizes), 7, check_vma)
    found = _wrap(jitted, functools.partial(jax.jvp, ours))(arguments, directions)
    local_cases.assert_close(found, jax.jvp(theirs, arguments, directions), dtype)


@pytest.mark.extended
@pytest.mark.leaks_in_jax
@_parameters(lambda *case: case in [("potri", 2, False)])
def test_gradient(name, sizes, check_vma, jitted, dtype):
    arguments, _ = local_cases.make_arguments(7, dtype)
    ours, theirs = local_cases.make_functions(name, local_cases.make_mesh(**sizes), 7, check_vma)
    found = _wrap(jitted, jax.grad(local_cases.loss_of(ours), (0, 1, 2)))(*arguments)
    local_cases.assert_close(
        found, jax.grad(local_cases.loss_of(theirs), (0, 1, 2))(*arguments), dtype
    )


@pytest.mark.extended
@pytest.mark.leaks_in_jax
@pytest.mark.parametrize(
    "name, batch, check_vma",
    cases.broad(
        itertools.product(local_cases.FUNCTIONS, (False, True), (True, False)),
        lambda *case: case == ("logdet", False, True),
    ),
)
def test_explicit_axes(name, batch, check_vma):
    mesh = local_cases.make_mesh(AxisType.Explicit, r=2)
    around = {"each": jax.vmap, "lead": (None,)} if batch else {}
    ours, theirs = local_cases.make_functions(name, mesh, 7, check_vma, **around)
    arguments = (
        local_cases.make_batch(7, "float64")
        if batch
        else local_cases.make_arguments(7, "float64")[0]
    )
    theirs = jax.vmap(theirs) if batch else theirs
    with cases.context(mesh):
        found = jax.jit(jax.value_and_grad(local_cases.loss_of(ours), (0, 1, 2)))(*arguments)
    expected = jax.value_and_grad(local_cases.loss_of(theirs), (0, 1, 2))(*arguments)
    local_cases.assert_close(found, expected, "float64")


_SPECS = [P("r", "c"), P(("c", "r"), None), P("r", None), P(None, "c"), P(None, ("r", "c"))]


@pytest.mark.breadth
@local_cases.TRACKED
@pytest.mark.parametrize("spec", _SPECS, ids=str)
@pytest.mark.parametrize("name", ["logdet", "potri", "eigenvalues"])
def test_specs(name, spec, check_vma):
    """Derivatives are right for blocks of rows and columns, axes in another order, and an axis
    along which all arrays are replicated."""
    arguments, _ = local_cases.make_arguments(8, "float64")
    ours, theirs = local_cases.make_functions(
        name, local_cases.make_mesh(r=2, c=2), 8, check_vma, spec
    )
    found = jax.jit(jax.grad(local_cases.loss_of(ours), (0, 2)))(*arguments)
    local_cases.assert_close(
        found, jax.grad(local_cases.loss_of(theirs), (0, 2))(*arguments), "float64"
    )


@pytest.mark.breadth
@local_cases.TRACKED
def test_eigenvectors_in_blocks(check_vma):
    spec = P("r", "c")
    mapped = jax.shard_map(
        lambda a, m: jaxmg.sygvd_shardmap_ctx(a, m, in_specs=spec)[1],
        mesh=local_cases.make_mesh(r=2, c=2), in_specs=(spec, spec), out_specs=spec,
        check_vma=check_vma,
    )  # fmt: skip
    (a, metric, _), _ = local_cases.make_arguments(8, "complex128")

    def ours(a, metric):
        return local_cases.magnitudes(mapped(cases.hermitian_part(a), cases.hermitian_part(metric)))

    def theirs(a, metric):
        return local_cases.generalized(cases.hermitian_part(a), cases.hermitian_part(metric))[1]

    found, expected = (
        jax.jit(jax.grad(local_cases.loss_of(f), (0, 1)))(a, metric) for f in (ours, theirs)
    )
    local_cases.assert_close(found, expected, "complex128")


@pytest.mark.breadth
@local_cases.TRACKED
def test_right_hand_sides_of_each_group_of_replicas(check_vma):
    def local(a, b):
        return jaxmg.potrs_shardmap_ctx(a, b, 3, in_specs=P("r", None), return_logdet=True)[:2]

    mapped = jax.shard_map(
        local, mesh=local_cases.make_mesh(r=2, c=2), in_specs=(P("r", None), P(None, "c")),
        out_specs=(P(None, "c"), P("c")), check_vma=check_vma,
    )  # fmt: skip
    (a, _, b), _ = local_cases.make_arguments(8, "float64")

    def alone(a, b):
        return jnp.linalg.solve(a, b), jnp.tile(jnp.linalg.slogdet(a)[1], 2)

    ours, theirs = (
        jax.grad(local_cases.loss_of(lambda a, b, f=f: f(cases.hermitian_part(a), b)), (0, 1))
        for f in (mapped, alone)
    )
    local_cases.assert_close(jax.jit(ours)(a, b), theirs(a, b), "float64")


@pytest.mark.breadth
@local_cases.TRACKED
@pytest.mark.parametrize("jitted", [True, False], ids=["jit", "eager"])
def test_gradient_inside(jitted, check_vma):
    """Without tracking, JAX differentiates the sum of all ranks' results."""
    ranks = 4

    def local(a, b):
        def loss(a, b):
            x, logdet, _ = jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)
            return jnp.sum(jnp.sin(x)) + logdet[0]

        return jax.grad(loss, (0, 1))(a, b)

    mapped = jax.shard_map(
        local, mesh=local_cases.make_mesh(r=ranks), in_specs=(P("r", None), P()),
        out_specs=(P("r", None), P()), check_vma=check_vma,
    )  # fmt: skip
    (a, _, b), _ = local_cases.make_arguments(8, "float64")

    def alone(a, b):
        x, logdet = jaxmg.potrs(a, b, 3, local_cases.make_mesh(r=1), return_logdet=True)
        return jnp.sum(jnp.sin(x)) + logdet

    of_a, of_b = jax.grad(alone, (0, 1))(a, b)
    expected = (of_a if check_vma else ranks * of_a), of_b
    local_cases.assert_close(_wrap(jitted, mapped)(a, b), expected, "float64")


@pytest.mark.breadth
@cases.one_process("it takes long")
@local_cases.TRACKED
@pytest.mark.parametrize("order", ["forward over reverse", "reverse over reverse", "hessian"])
@pytest.mark.parametrize("name", ["logdet", "potri", "syevd", "sygvd"])
def test_second_order(name, order, check_vma):
    arguments, directions = (
        tuple(map(jnp.asarray, arrays)) for arrays in local_cases.make_arguments(5, "float64")
    )

    def second(function):
        gradient = jax.grad(local_cases.loss_of(function), (0, 1, 2))
        if order == "forward over reverse":
            return lambda *arguments: jax.jvp(gradient, arguments, directions)[1]
        if order == "reverse over reverse":
            return jax.grad(local_cases.loss_of(gradient), (0, 1, 2))
        return jax.jacfwd(jax.jacrev(local_cases.loss_of(function), (0, 1)), (0, 1))

    ours, theirs = map(
        second, local_cases.make_functions(name, local_cases.make_mesh(r=2), 5, check_vma)
    )
    found, expected = jax.jit(ours)(*arguments), theirs(*arguments)
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-10 * scale)


@pytest.mark.breadth
def test_as_of_global_arrays():
    """Derivatives equal those of global arrays, also for a matrix that isn't assumed to be
    Hermitian: only its upper triangle counts."""
    mesh, weights = local_cases.make_mesh(r=2), np.arange(1.0, 9)
    (a, _, b), _ = local_cases.make_arguments(8, "complex128")
    a = np.triu(a)

    def local(a):
        x, logdet, _ = jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)
        w, _ = jaxmg.syevd_shardmap_ctx(a, return_eigenvectors=False)
        return x, logdet, w * weights

    def global_loss(a):
        x, logdet = jaxmg.potrs(a, b, 3, mesh, return_logdet=True)
        return x, logdet, jaxmg.syevd(a, None, mesh, return_eigenvectors=False) * weights

    ours = jax.shard_map(local, mesh=mesh, in_specs=P("r", None), out_specs=P())
    found, expected = (jax.jit(jax.grad(local_cases.loss_of(f)))(a) for f in (ours, global_loss))
    local_cases.assert_close(found, expected, "complex128")
    assert (np.tril(found, -1) == 0).all()


def _solve(mesh, spec_of_b=None):
    def local(a, b):
        return jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)

    return jax.shard_map(
        local, mesh=mesh, in_specs=(P("r"), spec_of_b or P()), out_specs=P("r"), check_vma=False
    )


@pytest.mark.extended
@pytest.mark.parametrize("b", ["same", "different"])
def test_right_hand_sides_that_differ(b):
    """If nothing tracks the difference, the derivative has the call's status, and NaN."""
    (a, _, _), _ = local_cases.make_arguments(8, "float64")
    b = np.tile(np.arange(1.0, 9), 2) if b == "same" else np.arange(1.0, 17)
    solve = jax.jit(functools.partial(jax.jvp, _solve(local_cases.make_mesh(r=2), P("r"))))
    (x, logdet, status), (x_dot, _, still) = solve((a, b), (a, b))
    assert still.dtype == jax.dtypes.float0
    different = not np.array_equal(b[:8], b[8:])
    np.testing.assert_array_equal(status, [-2, -2] if different else [0, 0])
    for value in (x, logdet, x_dot):
        assert np.isnan(value).all() == different
    if not different:
        np.testing.assert_allclose(x_dot, np.zeros(16), atol=1e-12)


@pytest.mark.breadth
def test_a_failed_factorization_has_derivatives_that_are_nan():
    (a, _, b), _ = local_cases.make_arguments(8, "float64")
    a[5, 5] = -1
    (x, _, status), (x_dot, logdet_dot, _) = jax.jit(
        functools.partial(jax.jvp, _solve(local_cases.make_mesh(r=2)))
    )((a, b), (a, b))
    np.testing.assert_array_equal(status, [6, 6])
    assert all(np.isnan(value).all() for value in (x, x_dot, logdet_dot))


@pytest.mark.breadth
def test_padding_of_the_caller():
    mesh, n = local_cases.make_mesh(r=2), 6
    (a, _, b), _ = local_cases.make_arguments(n, "float64")
    blocks = np.pad(a.reshape(2, 3, n), ((0, 0), (0, 2), (0, 0)), constant_values=np.nan)

    def local(a):
        x, _ = jaxmg.potrs_shardmap_ctx(a, b, 3, pad=False)
        w, _, _ = jaxmg.syevd_shardmap_ctx(a, pad=False)
        return (
            jnp.sum(x**2)
            + w[0]
            + jax.lax.psum(jaxmg.potri_shardmap_ctx(a, pad=False)[0], "r")[0, 5]
        )

    def alone(a):
        a = jnp.triu(a) + jnp.triu(a, 1).T
        x, w, inverse = jnp.linalg.solve(a, b), jnp.linalg.eigvalsh(a), jnp.linalg.inv(a)
        return jnp.sum(x**2) + w[0] + inverse[0, 5] + inverse[3, 5]  # row 0 of both blocks

    mapped = jax.shard_map(local, mesh=mesh, in_specs=P("r", None), out_specs=P())
    found = np.asarray(jax.jit(jax.grad(mapped))(blocks.reshape(10, n))).reshape(2, 5, n)
    local_cases.assert_close(found[:, :3].reshape(n, n), jax.grad(alone)(a), "float64")
    assert (found[:, 3:] == 0).all()


def test_empty():
    mapped = _solve(local_cases.make_mesh(r=2))
    found = jax.grad(lambda a, b: jnp.sum(mapped(a, b)[1]), (0, 1))(
        np.zeros((0, 0)), np.zeros((0, 2))
    )
    assert [x.shape for x in found] == [(0, 0), (0, 2)]


@pytest.mark.extended
@pytest.mark.leaks_in_jax
@cases.one_process("of a program's text")
def test_one_factorization_a_gradient():
    mapped = _solve(local_cases.make_mesh(r=4))

    def loss(a, b):
        x, logdet, _ = mapped(a, b)
        return jnp.sum(jnp.sin(x)) + logdet[0]

    (a, _, b), _ = local_cases.make_arguments(8, "float64")
    text = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(a, b).compile().as_text()
    calls = re.findall(r'custom_call_target="jaxmg_(\w+)"', text)
    assert sorted(calls) == ["factor_apply", "factor_apply", "factor_invert", "potrf"]
