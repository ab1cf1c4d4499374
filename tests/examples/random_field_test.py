"""Likelihoods of covariances in shards, and their gradients, are those of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_field
from jax.sharding import Mesh
from likelihood import log_density

GRID, PIXELS = 16, 32


@jax.jit
def expected(a, y):
    """log N(y | 0, a), on one device and by JAX's own derivatives."""
    factor = jnp.linalg.cholesky(a)
    white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    logs = jnp.sum(jnp.log(jnp.diagonal(factor)))
    return -white @ white / 2 - logs - len(y) * jnp.log(2 * jnp.pi) / 2


def problem(n):
    random = np.random.default_rng(n)
    m = random.standard_normal((n, n))
    return m @ m.T / n + np.eye(n), random.standard_normal(n)


@pytest.mark.parametrize("ranks, n", [(1, 40), (2, 40), (4, 40), (4, 41)])
def test_value_and_gradient(ranks, n):
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("rank",))
    a, y = problem(n)
    # The derivative by a symmetric matrix is one along symmetric matrices.
    theirs = jax.jit(jax.value_and_grad(lambda a, y: expected((a + a.T) / 2, y), (0, 1)))(a, y)
    ours = jax.jit(jax.value_and_grad(lambda a, y: log_density((a + a.T) / 2, y, mesh), (0, 1)))(
        a, y
    )
    alone = jax.jit(lambda a, y: log_density(a, y, mesh))(a, y)
    leaves = zip(jax.tree.leaves((alone, ours)), jax.tree.leaves((theirs[0], theirs)), strict=True)
    for mine, other in leaves:
        np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-12)


def test_not_positive_definite_is_nan():
    mesh = Mesh(np.array(jax.devices()[:2]), ("rank",))
    value, gradient = jax.jit(jax.value_and_grad(lambda a, y: log_density(a, y, mesh)))(
        -np.eye(6), np.ones(6)
    )
    # What is below the diagonal isn't read.
    assert np.isnan(value) and np.isnan(gradient[np.triu_indices(6)]).all()


def test_no_device_has_a_whole_matrix():
    n = 12 * random_field.MESH.size  # no other array has such a side
    pixels, data = jax.ShapeDtypeStruct((n, 3), int), jax.ShapeDtypeStruct((n,), float)
    program = random_field.loss.lower(random_field.START, GRID, pixels, data).compile().as_text()
    assert f"[12,{n}]" in program
    assert f"[{n},{n}]" not in program


def box():
    """|m| of NumPy's whole spectrum of a box, and P(k) there."""
    m = np.fft.fftfreq(GRID, 1 / GRID)
    radius = np.sqrt(m[:, None, None] ** 2 + m[:, None] ** 2 + m**2)
    return radius, np.asarray(random_field.power(random_field.TRUTH, 2 * np.pi / GRID * radius))


def test_covariance_is_the_transform_of_the_spectrum():
    xi = np.fft.ifftn(box()[1]).real
    pixels = np.random.default_rng(0).integers(0, GRID // 4, (PIXELS, 3))
    apart = tuple((pixels[:, None] - pixels).transpose(2, 0, 1) % GRID)
    a = jax.jit(random_field.covariance, static_argnums=1)(random_field.TRUTH, GRID, pixels)
    noise = random_field.NOISE**2 * np.eye(PIXELS)
    np.testing.assert_allclose(a, xi[apart] + noise, rtol=1e-12, atol=1e-14)


def test_fields_have_the_spectrum_that_is_said():
    spectrum, draws = box()[1], 4
    fields = [np.asarray(random_field.draw_field(jax.random.key(i), GRID)) for i in range(draws)]
    powers = np.mean(abs(np.fft.fftn(fields, axes=(1, 2, 3))) ** 2, axis=0) / GRID**3
    ratio = powers[spectrum > 0] / spectrum[spectrum > 0]
    assert abs(ratio.mean() - 1) < 4 * np.sqrt(2 / (draws * GRID**3))


def test_band_powers_are_numpys():
    field = np.random.default_rng(0).standard_normal((GRID,) * 3)
    radius, _ = box()
    shell = np.round(radius).astype(int).ravel()
    powers = (abs(np.fft.fftn(field)) ** 2 / GRID**3).ravel()
    modes = np.bincount(shell, minlength=GRID)
    k, found, counted = map(np.asarray, random_field.band_powers(field))
    np.testing.assert_array_equal(counted, modes)
    seen = modes > 0
    mean = np.bincount(shell, powers, GRID)[seen] / modes[seen]
    np.testing.assert_allclose(found[seen], mean, rtol=1e-12)
    mean = np.bincount(shell, radius.ravel(), GRID)[seen] / modes[seen]
    np.testing.assert_allclose(k[seen], 2 * np.pi / GRID * mean, rtol=1e-12)


def test_gradient_through_transform_and_solve():
    """Against finite differences, and against JAX's own on one device."""
    field = random_field.draw_field(jax.random.key(0), GRID)
    pixels, data = random_field.observe(field, PIXELS)
    np.testing.assert_allclose(
        data, np.asarray(field)[tuple(pixels.T)], atol=5 * random_field.NOISE
    )
    assert random_field.gradient_error(GRID, pixels, data) < 1e-8

    apart = tuple(abs(pixels[:, None] - pixels).transpose(2, 0, 1))
    radius, _ = box()

    def alone(theta):
        xi = jnp.fft.ifftn(random_field.power(theta, 2 * np.pi / GRID * radius)).real
        return -expected(xi[apart] + random_field.NOISE**2 * jnp.eye(PIXELS), data)

    theirs = jax.jit(jax.value_and_grad(alone))(random_field.START)
    ours = random_field.loss(random_field.START, GRID, pixels, data)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-10)
