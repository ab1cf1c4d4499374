"""The Gaussian process is scikit-learn's, and its matrices stay in shards."""

import gaussian_process
import jax
import numpy as np
import pytest

N = 203  # which no number of devices divides


def patients():
    return *gaussian_process.patients(N), gaussian_process.PATIENTS_START


def terrain():
    return *gaussian_process.terrain(N)[1:], gaussian_process.TERRAIN_START


@pytest.mark.parametrize("data", [patients, terrain])
def test_is_scikit_learns(data):
    x, y, (x_new, y_new), start = data()
    x_new, y_new = x_new[:50], y_new[:50]
    theta, losses = gaussian_process.fit(x, y, start)
    assert losses[-1] < losses[0]
    assert np.abs(gaussian_process.value_and_grad(theta, x, y)[1]).max() < 1e-4
    mean, variance = gaussian_process.predict(theta, x, y, x_new, group=30)
    assert gaussian_process.compare(theta, x, y, x_new, mean, variance)
    # And that would find a difference.
    assert not gaussian_process.compare(theta, x, y, x_new, mean + 1e-6, variance)

    model = gaussian_process.regressor(start).fit(x, y)
    error = gaussian_process.rms(y_new - mean)
    assert gaussian_process.compare_fits(theta, -losses[-1], error, model, x_new, y_new)
    # And a fit that has stopped too early.
    early = theta + np.array([0, 0.05, 0])
    assert not gaussian_process.compare_fits(early, -losses[-1], error, model, x_new, y_new)


@pytest.mark.parametrize("refine", ["float32", "tf32"])
def test_predictions_from_a_factor_in_lower_precision(refine):
    x, y, (x_new, _), start = terrain()
    plain = gaussian_process.predict(start, x, y, x_new[:50])
    refined = gaussian_process.predict(start, x, y, x_new[:50], refine)
    for a, b in zip(refined, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * np.abs(b).max())


def test_no_device_has_a_whole_matrix():
    n = 12 * gaussian_process.MESH.size
    x, y = jax.ShapeDtypeStruct((n, 2), float), jax.ShapeDtypeStruct((n,), float)
    theta = jax.ShapeDtypeStruct((3,), float)
    state = jax.eval_shape(gaussian_process.OPTIMIZER.init, theta)
    program = gaussian_process.step.lower(theta, state, x, y).compile().as_text()
    assert f"[12,{n}]" in program
    assert f"[{n},{n}]" not in program
