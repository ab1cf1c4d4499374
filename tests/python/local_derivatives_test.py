"""Derivatives and batches inside the caller's shard_map, against JAX's own on one device."""

import functools
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

pytestmark = cases.needs_transformations

_ROWS, _SAME = "rows", "same"


def _magnitudes(v):
    """What eigenvectors have whatever their phases; a rank has columns of them."""
    return jnp.abs(v.T) ** 2


def _generalized(a, metric):
    lower = jnp.linalg.inv(jnp.linalg.cholesky(metric, symmetrize_input=False))
    w, y = jnp.linalg.eigh(lower @ a @ lower.conj().T)
    return w, _magnitudes(lower.conj().T @ y)


def _eigen(w, v, _):
    return w, _magnitudes(v)


# Functions of (a, metric, b): of a rank's blocks, and the same by JAX alone; how the results lie.
_FUNCTIONS = {
    "potrs": (
        lambda a, m, b, **w: jaxmg.potrs_shardmap_ctx(a, b, 3, **w)[:1],
        lambda a, m, b: (jnp.linalg.solve(a, b),),
        (_SAME,),
    ),
    "potrs of a vector": (
        lambda a, m, b, **w: jaxmg.potrs_shardmap_ctx(a, b[:, 0], 3, **w)[:1],
        lambda a, m, b: (jnp.linalg.solve(a, b[:, 0]),),
        (_SAME,),
    ),
    "logdet": (
        lambda a, m, b, **w: jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True, **w)[:2],
        lambda a, m, b: (jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1][None]),
        (_SAME, _SAME),
    ),
    "potri": (
        lambda a, m, b, **w: jaxmg.potri_shardmap_ctx(a, 3, **w)[:1],
        lambda a, m, b: (jnp.triu(jnp.linalg.inv(a)),),
        (_ROWS,),
    ),
    "eigenvalues": (
        lambda a, m, b, **w: jaxmg.syevd_shardmap_ctx(a, return_eigenvectors=False, **w)[:1],
        lambda a, m, b: (jnp.linalg.eigvalsh(a),),
        (_SAME,),
    ),
    "syevd": (
        lambda a, m, b, **w: _eigen(*jaxmg.syevd_shardmap_ctx(a, **w)),
        lambda a, m, b: _eigen(*jnp.linalg.eigh(a), None),
        (_SAME, _ROWS),
    ),
    "sygvd": (
        lambda a, m, b, **w: _eigen(*jaxmg.sygvd_shardmap_ctx(a, m, **w)),
        lambda a, m, b: _generalized(a, m),
        (_SAME, _ROWS),
    ),
}


def _mesh(kind=AxisType.Auto, **sizes):
    places = np.array(cases.devices(int(np.prod(list(sizes.values())))))
    kinds = (kind,) * len(sizes)
    return Mesh(places.reshape(tuple(sizes.values())), tuple(sizes), axis_types=kinds)


def _arguments(n, dtype):
    """(a, metric, b), and directions to go from there."""
    random = cases.rng(n, 6)
    a = cases.positive_definite("well", n, dtype) + np.diag(np.arange(n)).astype(dtype)
    metric = cases.positive_definite("well", n, dtype) + np.eye(n, dtype=dtype)
    shapes = (n, n), (n, n), (n, 2)
    return (a, metric, cases.normal(random, (n, 2), dtype)), tuple(
        cases.normal(random, shape, dtype) for shape in shapes
    )


def _mapped(name, mesh, n, check_vma, spec=None, each=lambda function: function, lead=()):
    """(function of global arrays by way of a shard_map, the same by JAX alone); ``each`` is around
    the rank's, and around what is done to its arguments and results, which it gives dimensions with
    these specs."""
    ours, theirs, lie = _FUNCTIONS[name]
    spec = spec or P(mesh.axis_names, None)
    ranks = mesh.size if spec[1:] in ((), (None,)) else 1  # blocks need no padding
    rows = -(-n // ranks) * ranks
    by_rows = P(*lead, *spec)
    out = tuple(by_rows if how == _ROWS else P() for how in lie)
    local = each(functools.partial(ours, in_specs=spec))
    inside = jax.shard_map(
        local, mesh=mesh, in_specs=(by_rows, by_rows, P()), out_specs=out, check_vma=check_vma
    )
    padded = each(lambda x: jnp.pad(cases.hermitian_part(x), ((0, rows - n), (0, 0))))
    whole = each(lambda x: x[:n])

    def put(x, spec):
        if AxisType.Explicit not in mesh.axis_types:
            return x
        return jax.sharding.reshard(x, jax.NamedSharding(mesh, spec))

    def run(a, metric, b):
        found = inside(put(padded(a), by_rows), put(padded(metric), by_rows), put(b, P()))
        found = (put(x, P()) for x in found)
        return tuple(whole(x) if how == _ROWS else x for x, how in zip(found, lie, strict=True))

    @cases.precisely
    def alone(a, metric, b):
        return theirs(cases.hermitian_part(a), cases.hermitian_part(metric), b)

    return run, alone


def _loss(function):
    """A real number of all results of a function, none of which cancels."""

    def loss(*arguments):
        return sum(
            jnp.sum(
                jnp.abs(x) ** 2 * jnp.arange(1, x.size + 1, dtype=x.real.dtype).reshape(x.shape)
            )
            for x in jax.tree.leaves(function(*arguments))
        )

    return loss


def _assert_close(found, expected, dtype):
    __tracebackhide__ = True
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        scale = np.abs(theirs).max(initial=0) + cases.eps(dtype)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2000 * cases.eps(dtype) * scale)


_MESHES = [{"r": 1}, {"r": 2}, {"r": 4}]
# The dtypes are dealt out over the rest.
_CASES = [
    (name, sizes, check_vma, jitted, cases.DTYPES[(i + i // 4) % 4])
    for i, (name, sizes, check_vma, jitted) in enumerate(
        itertools.product(_FUNCTIONS, _MESHES, [True, False], [True, False])
    )
]


def _parameters(core):
    """The cases, of which those without ``core(name, ranks, check_vma)`` are breadth, and so are
    eager ones, which compile each step for itself."""
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
    arguments, directions = _arguments(7, dtype)
    ours, theirs = _mapped(name, _mesh(**sizes), 7, check_vma)
    found = _wrap(jitted, functools.partial(jax.jvp, ours))(arguments, directions)
    _assert_close(found, jax.jvp(theirs, arguments, directions), dtype)


@pytest.mark.leaks_in_jax
@_parameters(lambda *case: case in [("logdet", 2, True), ("potri", 2, False)])
def test_gradient(name, sizes, check_vma, jitted, dtype):
    arguments, _ = _arguments(7, dtype)
    ours, theirs = _mapped(name, _mesh(**sizes), 7, check_vma)
    found = _wrap(jitted, jax.grad(_loss(ours), (0, 1, 2)))(*arguments)
    _assert_close(found, jax.grad(_loss(theirs), (0, 1, 2))(*arguments), dtype)


_TRACKED = pytest.mark.parametrize("check_vma", [True, False], ids=["tracked", "untracked"])


@pytest.mark.leaks_in_jax
@pytest.mark.parametrize(
    "name, batch, check_vma",
    cases.broad(
        itertools.product(_FUNCTIONS, (False, True), (True, False)),
        lambda *case: case == ("logdet", False, True),
    ),
)
def test_explicit_axes(name, batch, check_vma):
    mesh = _mesh(AxisType.Explicit, r=2)
    around = {"each": jax.vmap, "lead": (None,)} if batch else {}
    ours, theirs = _mapped(name, mesh, 7, check_vma, **around)
    arguments = _batch(7, "float64") if batch else _arguments(7, "float64")[0]
    theirs = jax.vmap(theirs) if batch else theirs
    with cases.context(mesh):
        found = jax.jit(jax.value_and_grad(_loss(ours), (0, 1, 2)))(*arguments)
    expected = jax.value_and_grad(_loss(theirs), (0, 1, 2))(*arguments)
    _assert_close(found, expected, "float64")


_SPECS = [P("r", "c"), P(("c", "r"), None), P("r", None), P(None, "c"), P(None, ("r", "c"))]


@pytest.mark.breadth
@_TRACKED
@pytest.mark.parametrize("spec", _SPECS, ids=str)
@pytest.mark.parametrize("name", ["logdet", "potri", "eigenvalues"])
def test_specs(name, spec, check_vma):
    """Blocks of rows and columns, axes in another order, one axis that all is the same along."""
    arguments, _ = _arguments(8, "float64")
    ours, theirs = _mapped(name, _mesh(r=2, c=2), 8, check_vma, spec)
    found = jax.jit(jax.grad(_loss(ours), (0, 2)))(*arguments)
    _assert_close(found, jax.grad(_loss(theirs), (0, 2))(*arguments), "float64")


@pytest.mark.breadth
@_TRACKED
def test_eigenvectors_in_blocks(check_vma):
    spec = P("r", "c")
    mapped = jax.shard_map(
        lambda a, m: jaxmg.sygvd_shardmap_ctx(a, m, in_specs=spec)[1],
        mesh=_mesh(r=2, c=2), in_specs=(spec, spec), out_specs=spec, check_vma=check_vma,
    )  # fmt: skip
    (a, metric, _), _ = _arguments(8, "complex128")

    def ours(a, metric):
        return _magnitudes(mapped(cases.hermitian_part(a), cases.hermitian_part(metric)))

    def theirs(a, metric):
        return _generalized(cases.hermitian_part(a), cases.hermitian_part(metric))[1]

    found, expected = (jax.jit(jax.grad(_loss(f), (0, 1)))(a, metric) for f in (ours, theirs))
    _assert_close(found, expected, "complex128")


@pytest.mark.breadth
@_TRACKED
def test_right_hand_sides_of_each_group_of_replicas(check_vma):
    def local(a, b):
        return jaxmg.potrs_shardmap_ctx(a, b, 3, in_specs=P("r", None), return_logdet=True)[:2]

    mapped = jax.shard_map(
        local, mesh=_mesh(r=2, c=2), in_specs=(P("r", None), P(None, "c")),
        out_specs=(P(None, "c"), P("c")), check_vma=check_vma,
    )  # fmt: skip
    (a, _, b), _ = _arguments(8, "float64")

    def alone(a, b):
        return jnp.linalg.solve(a, b), jnp.tile(jnp.linalg.slogdet(a)[1], 2)

    ours, theirs = (
        jax.grad(_loss(lambda a, b, f=f: f(cases.hermitian_part(a), b)), (0, 1))
        for f in (mapped, alone)
    )
    _assert_close(jax.jit(ours)(a, b), theirs(a, b), "float64")


@pytest.mark.breadth
@_TRACKED
@pytest.mark.parametrize("jitted", [True, False], ids=["jit", "eager"])
def test_gradient_inside(jitted, check_vma):
    """Without tracking JAX differentiates the sum of what all ranks return."""
    ranks = 4

    def local(a, b):
        def loss(a, b):
            x, logdet, _ = jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)
            return jnp.sum(jnp.sin(x)) + logdet[0]

        return jax.grad(loss, (0, 1))(a, b)

    mapped = jax.shard_map(
        local, mesh=_mesh(r=ranks), in_specs=(P("r", None), P()), out_specs=(P("r", None), P()),
        check_vma=check_vma,
    )  # fmt: skip
    (a, _, b), _ = _arguments(8, "float64")

    def alone(a, b):
        x, logdet = jaxmg.potrs(a, b, 3, _mesh(r=1), return_logdet=True)
        return jnp.sum(jnp.sin(x)) + logdet

    of_a, of_b = jax.grad(alone, (0, 1))(a, b)
    expected = (of_a if check_vma else ranks * of_a), of_b
    _assert_close(_wrap(jitted, mapped)(a, b), expected, "float64")


@pytest.mark.breadth
@cases.one_process("it takes long")
@_TRACKED
@pytest.mark.parametrize("order", ["forward over reverse", "reverse over reverse", "hessian"])
@pytest.mark.parametrize("name", ["logdet", "potri", "syevd", "sygvd"])
def test_second_order(name, order, check_vma):
    arguments, directions = (tuple(map(jnp.asarray, arrays)) for arrays in _arguments(5, "float64"))

    def second(function):
        gradient = jax.grad(_loss(function), (0, 1, 2))
        if order == "forward over reverse":
            return lambda *arguments: jax.jvp(gradient, arguments, directions)[1]
        if order == "reverse over reverse":
            return jax.grad(_loss(gradient), (0, 1, 2))
        return jax.jacfwd(jax.jacrev(_loss(function), (0, 1)), (0, 1))

    ours, theirs = map(second, _mapped(name, _mesh(r=2), 5, check_vma))
    found, expected = jax.jit(ours)(*arguments), theirs(*arguments)
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-10 * scale)


def _batch(n, dtype, size=3):
    """Several of (a, metric, b), no two alike."""
    arguments, _ = _arguments(n, dtype)
    return tuple(np.stack([x * (1 + i) for i in range(size)]) for x in arguments)


def _batched(name, ranks, check_vma):
    ours, _ = _mapped(name, _mesh(r=ranks), 7, check_vma, each=jax.vmap, lead=(None,))
    return ours, jax.vmap(_mapped(name, _mesh(r=ranks), 7, check_vma)[1])


_BATCHES = [
    (name, (1, 2, 4)[i % 3], check_vma, cases.DTYPES[i % 4])
    for i, (name, check_vma) in enumerate(itertools.product(_FUNCTIONS, [True, False]))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, ranks, check_vma, dtype",
    cases.broad(_BATCHES, lambda name, *_: name in ("logdet", "syevd")),
)
def test_batches(name, ranks, check_vma, dtype):
    ours, theirs = _batched(name, ranks, check_vma)
    arguments = _batch(7, dtype)
    _assert_close(jax.jit(ours)(*arguments), theirs(*arguments), dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, ranks, check_vma, dtype",
    cases.broad(_BATCHES, lambda name, _, check_vma, __: (name, check_vma) == ("logdet", False)),
)
def test_gradient_of_batches(name, ranks, check_vma, dtype):
    ours, theirs = _batched(name, ranks, check_vma)
    arguments = _batch(7, dtype)
    found, expected = (jax.jit(jax.grad(_loss(f), (0, 1, 2)))(*arguments) for f in (ours, theirs))
    _assert_close(found, expected, dtype)


@pytest.mark.breadth
@_TRACKED
@pytest.mark.parametrize("how", ["vmap of grad", "vmap of jit", "vmap of vmap"])
def test_batches_of_other_functions(how, check_vma):
    """Without tracking JAX differentiates the sum of what all ranks return."""
    ranks = 2

    def of(solve, vmap):
        def loss(a, b):
            x, logdet = solve(a, b)
            return jnp.sum(jnp.sin(x)) + logdet[0]

        if how == "vmap of grad":
            return vmap(jax.grad(loss, (0, 1)))
        return vmap(jax.jit(solve) if how == "vmap of jit" else vmap(solve, (None, 1), 1))

    def local(a, b):
        return jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)[:2]

    def alone(a, b):
        a = jnp.triu(a) + jnp.conj(jnp.triu(a, 1)).T
        return jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1][None]

    by_rows = P(None, "r", None)
    mapped = jax.shard_map(
        of(local, jax.vmap), mesh=_mesh(r=ranks), in_specs=(by_rows, P()),
        out_specs=(by_rows, P()) if how == "vmap of grad" else P(), check_vma=check_vma,
    )  # fmt: skip
    a, _, b = _batch(8, "float64")
    found, expected = jax.jit(mapped)(a, b), of(alone, jax.vmap)(a, b)
    if how == "vmap of grad" and not check_vma:
        expected = ranks * expected[0], expected[1]
    _assert_close(found, expected, "float64")


@_TRACKED
def test_right_hand_sides_become_columns(check_vma):
    (a, _, _), (_, _, many) = _arguments(8, "complex128")[0], _batch(8, "complex128")

    def local(a, many):
        return jax.vmap(lambda b: jaxmg.potrs_shardmap_ctx(a, b, 3)[0])(many)

    mapped = jax.shard_map(
        local, mesh=_mesh(r=2), in_specs=(P("r", None), P()), out_specs=P(), check_vma=check_vma
    )
    assert not re.search("scan|while", str(jax.make_jaxpr(mapped)(a, many)))
    _assert_close(jax.jit(mapped)(a, many), np.linalg.solve(a, many), "complex128")


@pytest.mark.breadth
def test_failures_in_a_batch_are_of_one_matrix():
    """One isn't positive definite; of another b differs between the ranks."""
    a, _, b = _batch(8, "float64")
    a[1, 5, 5] = -1
    b = np.stack([b, b])
    b[1, 2, 0, 0] += 1

    mapped = jax.shard_map(
        lambda a, b: jax.vmap(lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3))(a, b[0]),
        mesh=_mesh(r=2), in_specs=(P(None, "r", None), P("r")), out_specs=P(), check_vma=False,
    )  # fmt: skip
    x, status = jax.jit(mapped)(a, b)
    np.testing.assert_array_equal(status[:, 0], [0, 6, -2])
    assert np.isfinite(x[0]).all() and np.isnan(x[1:]).all()


@pytest.mark.breadth
def test_as_of_global_arrays():
    """Of a matrix that isn't taken for Hermitian: the upper triangle counts."""
    mesh, weights = _mesh(r=2), np.arange(1.0, 9)
    (a, _, b), _ = _arguments(8, "complex128")
    a = np.triu(a)

    def local(a):
        x, logdet, _ = jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)
        w, _ = jaxmg.syevd_shardmap_ctx(a, return_eigenvectors=False)
        return x, logdet, w * weights

    def of_global(a):
        x, logdet = jaxmg.potrs(a, b, 3, mesh, return_logdet=True)
        return x, logdet, jaxmg.syevd(a, None, mesh, return_eigenvectors=False) * weights

    ours = jax.shard_map(local, mesh=mesh, in_specs=P("r", None), out_specs=P())
    found, expected = (jax.jit(jax.grad(_loss(f)))(a) for f in (ours, of_global))
    _assert_close(found, expected, "complex128")
    assert (np.tril(found, -1) == 0).all()


def _solve(mesh, spec_of_b=None):
    def local(a, b):
        return jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)

    return jax.shard_map(
        local, mesh=mesh, in_specs=(P("r"), spec_of_b or P()), out_specs=P("r"), check_vma=False
    )


@pytest.mark.parametrize("b", ["same", "different"])
def test_right_hand_sides_that_differ(b):
    """Where nothing tracks it the derivative has the status, and NaN, that the call has."""
    (a, _, _), _ = _arguments(8, "float64")
    b = np.tile(np.arange(1.0, 9), 2) if b == "same" else np.arange(1.0, 17)
    solve = jax.jit(functools.partial(jax.jvp, _solve(_mesh(r=2), P("r"))))
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
    (a, _, b), _ = _arguments(8, "float64")
    a[5, 5] = -1
    (x, _, status), (x_dot, logdet_dot, _) = jax.jit(
        functools.partial(jax.jvp, _solve(_mesh(r=2)))
    )((a, b), (a, b))
    np.testing.assert_array_equal(status, [6, 6])
    assert all(np.isnan(value).all() for value in (x, x_dot, logdet_dot))


@pytest.mark.breadth
def test_padding_of_the_caller():
    mesh, n = _mesh(r=2), 6
    (a, _, b), _ = _arguments(n, "float64")
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
    _assert_close(found[:, :3].reshape(n, n), jax.grad(alone)(a), "float64")
    assert (found[:, 3:] == 0).all()


def test_empty():
    mapped = _solve(_mesh(r=2))
    found = jax.grad(lambda a, b: jnp.sum(mapped(a, b)[1]), (0, 1))(
        np.zeros((0, 0)), np.zeros((0, 2))
    )
    assert [x.shape for x in found] == [(0, 0), (0, 2)]


@pytest.mark.leaks_in_jax
@cases.one_process("of a program's text")
def test_one_factorization_a_gradient():
    mapped = _solve(_mesh(r=4))

    def loss(a, b):
        x, logdet, _ = mapped(a, b)
        return jnp.sum(jnp.sin(x)) + logdet[0]

    (a, _, b), _ = _arguments(8, "float64")
    text = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(a, b).compile().as_text()
    calls = re.findall(r'custom_call_target="jaxmg_(\w+)"', text)
    assert sorted(calls) == ["factor_apply", "factor_apply", "factor_invert", "potrf"]
