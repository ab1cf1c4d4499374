"""The recipes of docs/clients.md, beside what their libraries compute on one device.

Each test is skipped where its library isn't installed. The step `clients` of ci/cpu.sh installs one
after the other.
"""

import importlib
import os
import pathlib
import re
import sys
import textwrap
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmg

DOCS = pathlib.Path(__file__).parents[2] / "docs"
_FENCE = re.compile(r'^```python(?: title="(\w+)")?\n(.*?)^```$', re.M | re.S)
BLOCKS = dict(_FENCE.findall((DOCS / "clients.md").read_text()))
# The modules that a block needs beyond those of the page's first lines.
MODULES = {
    "tinygp": "tinygp",
    "numpyro": "numpyro",
    "gpjax": "gpjax gpjax.conditioning jaxmg.linalg types",
    "lineax": "lineax jaxmg.lineax",
    "optimistix": "optimistix jaxmg.lineax",
    "diffrax": "diffrax jaxmg.lineax",
    "quantax": "quantax",
    "joblib": "joblib os",
    "dask": "dask dask.distributed",
    "orbax": "orbax.checkpoint",
}
_N = 96


def _run(name, block=None, **names):
    """Runs the page's first lines and the block; returns their names."""
    for module in MODULES[name].split():
        top = module.partition(".")[0]
        if top not in ("jaxmg", *sys.stdlib_module_names):
            pytest.importorskip(module)
        importlib.import_module(module)
        names[top] = sys.modules[top]
    exec(compile(BLOCKS[""], "clients.md", "exec"), names)
    exec(compile(block or BLOCKS[name], name, "exec"), names)
    return types.SimpleNamespace(**names)


def _definite(n=_N):
    random = np.random.default_rng(1).standard_normal((n, n))
    return random @ random.T + n * np.eye(n)


def _data(n=_N):
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 10, n))
    return x, np.sin(x) + 0.1 * random.standard_normal(n)


def _close(found, expected, **tolerances):
    __tracebackhide__ = True
    tolerances = {"rtol": 1e-8, "atol": 1e-10} | tolerances
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerances), found, expected)


def _has_no_whole_matrix(f, *arguments, n=_N):
    """Checks that no device holds all of an n x n matrix in the compiled program."""
    __tracebackhide__ = True
    text = jax.jit(f).lower(*arguments).compile().as_text()
    assert f"f64[{n // 4},{n}]" in text and f"f64[{n},{n}]" not in text


def test_recipes_are_short():
    assert {*MODULES} - {"orbax"} == {*BLOCKS} - {""}
    for name, block in BLOCKS.items():
        assert sum(map(bool, block.split("\n"))) <= 11, name


def test_tinygp():
    names = _run("tinygp")
    tinygp, (x, y) = names.tinygp, _data()

    def process(theta, solver):
        kernel = jnp.exp(theta[0]) * tinygp.kernels.ExpSquared(jnp.exp(theta[1]))
        return tinygp.GaussianProcess(kernel, x, diag=0.01, solver=solver)

    def loss(theta, solver):
        return -process(theta, solver).log_probability(y)

    def others(theta, solver):
        gp = process(theta, solver)
        conditioned = gp.condition(y, jnp.linspace(0, 10, 5)).gp
        samples = gp.sample(jax.random.key(0), (2,))
        return conditioned.loc, conditioned.covariance, samples, gp.predict(y)

    theta = jnp.array([0.1, 0.2])
    ours, theirs = names.Solver, tinygp.solvers.DirectSolver
    for f in (jax.value_and_grad(loss), others):
        f = jax.jit(f, static_argnums=1)
        _close(f(theta, ours), f(theta, theirs), rtol=1e-7)
    _has_no_whole_matrix(jax.value_and_grad(lambda theta: loss(theta, ours)), theta)


def test_numpyro():
    distributions = pytest.importorskip("numpyro.distributions")
    infer = importlib.import_module("numpyro.infer")
    names = _run("numpyro", dist=distributions)
    x, y = _data()

    def covariance(amplitude, length, x=x):
        return amplitude * jnp.exp(-(((x[:, None] - x) / length) ** 2) / 2) + 0.01 * jnp.eye(_N)

    def model(distribution, y=None):
        parameters = [
            names.numpyro.sample(name, distributions.LogNormal(0.0, 1.0)) for name in ("a", "l")
        ]
        names.numpyro.sample("y", distribution(jnp.zeros(_N), covariance(*parameters)), obs=y)

    def chain(distribution):
        kernel = infer.NUTS(model)
        mcmc = infer.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
        mcmc.run(jax.random.key(1), distribution, y)
        return mcmc.get_samples()

    samples = chain(names.Normal)
    _close(samples, chain(distributions.MultivariateNormal), rtol=1e-5)
    drawn = infer.Predictive(model, samples)(jax.random.key(0), names.Normal)["y"]
    assert drawn.shape == (5, _N) and jnp.isfinite(drawn).all()

    normal = names.Normal(jnp.ones(_N), covariance(1.0, 2.0))
    draws = normal.sample(jax.random.key(2), (40, 100)).reshape(4000, _N)
    _close(jnp.mean(draws, axis=0), jnp.ones(_N), atol=0.1)
    _close(jnp.cov(draws.T), covariance(1.0, 2.0), atol=0.15)

    def loss(length, x):
        return names.Normal(jnp.zeros(_N), covariance(1.0, length, x)).log_prob(y)

    _has_no_whole_matrix(jax.value_and_grad(loss), 1.1, jnp.asarray(x))


def test_gpjax():
    gpjax, n = pytest.importorskip("gpjax"), 1024  # smaller ones go to one device
    x, y = (jnp.asarray(each)[:, None] for each in _data(n))
    data, before = gpjax.Dataset(X=x, y=y), dict(vars(gpjax.conditioning))

    def model(length):
        kernel = gpjax.kernels.RBF(lengthscale=length)
        prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Constant(), kernel=kernel)
        return prior * gpjax.likelihoods.Gaussian()

    def loss(length):
        return -gpjax.objectives.conjugate_mll(model(length), data)

    def prediction(length):
        found = model(length).condition(data)(jnp.linspace(0, 10, 5)[:, None])
        return found.mean, found.variance

    def values():
        return jax.jit(jax.value_and_grad(loss))(1.1), jax.jit(prediction)(1.1)

    expected = values()
    try:
        _run("gpjax")
        jax.clear_caches()
        _close(values(), expected, rtol=1e-6, atol=1e-8)
        _has_no_whole_matrix(jax.value_and_grad(loss), 1.1, n=n)
    finally:
        vars(gpjax.conditioning).update(before)
        jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()))


@pytest.mark.parametrize("kind", ["Cholesky", "LU", "QR"])
def test_lineax(kind):
    a, b = _definite(), np.arange(1.0, _N + 1)
    block = BLOCKS["lineax"].replace("jaxmg.lineax.Cholesky", f"jaxmg.lineax.{kind}")
    names = _run("lineax", block, a=jnp.asarray(a), b=jnp.asarray(b))
    assert names.solution.result == names.lineax.RESULTS.successful
    _close(names.solution.value, np.linalg.solve(a, b))


def test_optimistix():
    targets = jnp.arange(1.0, 9.0)

    def f(y, _):
        return y**3 + y - targets + 0.1 * jnp.roll(y, 1)

    def residuals(y, _):
        return jnp.concatenate([y**2 - targets, y[1:] - y[:-1]])

    names = _run("optimistix", f=f, residuals=residuals, y0=jnp.ones(8))
    _close(f(names.root, None), jnp.zeros(8), atol=1e-7)
    gradient = jax.grad(lambda y: jnp.sum(residuals(y, None) ** 2))(names.fit)
    _close(gradient, jnp.zeros(8), atol=1e-5)


def test_diffrax():
    matrix = np.random.default_rng(0).standard_normal((8, 8))

    def f(y, _):
        return matrix @ jnp.sin(y) - 100 * (y - 1)

    names = _run("diffrax", f=f, y0=jnp.ones(8))
    diffrax = names.diffrax
    same = diffrax.diffeqsolve(
        names.term, diffrax.Kvaerno5(), 0, 1, 0.01, jnp.ones(8), stepsize_controller=names.steps
    )  # fmt: skip
    _close(names.y, same.ys, rtol=1e-6)


def test_quantax():
    quantax = pytest.importorskip("quantax")
    quantax.sites.Chain(8)
    hamiltonian = quantax.operator.Ising(h=1.0)
    state = quantax.state.Variational(quantax.model.RBM_Dense(features=16), max_parallel=1024)
    names = _run("quantax", state=state, hamiltonian=hamiltonian)
    samples = quantax.sampler.LocalFlip(state, 64).sweep()
    step = names.optimizer.get_step(samples)
    own = quantax.optimizer.minnorm_shift_eig(rshift=0.0, ashift=1e-3)
    expected = quantax.optimizer.SR(state, hamiltonian, solver=own).get_step(samples)
    _close(step, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["joblib", "dask"])
def test_workers(name, monkeypatch):
    for variable in ("JAX_ENABLE_X64", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    pytest.importorskip("joblib")
    a, several = _definite(), [np.full(_N, k) for k in (1.0, 2.0)]
    factor = jaxmg.cho_factor(a, mesh=jax.make_mesh((4,), ("rank",)))
    names = vars(_run("joblib", factor=factor, several=several))
    try:
        if name == "dask":
            monkeypatch.setitem(BLOCKS, "", "")
            names = vars(_run("dask", **names))
        _close(names["solutions"], [np.linalg.solve(a, b) for b in several])
    finally:
        if "client" in names:
            names["client"].close()
        os.environ.pop("JAX_NUM_CPU_DEVICES", None)


def test_orbax(tmp_path):
    """The lines of the FAQ."""
    text = (DOCS / "faq.md").read_text()
    lines = re.search(r"((?:    .*\n|\n)*    checkpointer = (?:    .*\n|\n|.*\n)*?)\n(?=\S)", text)[
        1
    ]
    factor = jaxmg.cho_factor(_definite(), mesh=jax.make_mesh((2,), ("rank",)))
    names = _run("orbax", textwrap.dedent(lines), path=tmp_path / "factor", factor=factor)
    assert names.factor.mesh == names.mesh
    _close(names.factor.solve(np.ones(_N)), factor.solve(np.ones(_N)))
