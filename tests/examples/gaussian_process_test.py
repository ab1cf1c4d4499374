"""The Gaussian process is scikit-learn's, and its matrices stay in shards."""

import gaussian_process
import jax
import numpy as np


def test_is_scikit_learns():
    n = 203  # which no number of devices divides
    _, x, y, (x_new, _) = gaussian_process.terrain(n)
    theta, losses = gaussian_process.fit(x, y)
    assert losses[-1] < losses[0]
    assert np.abs(gaussian_process.loss(theta, x, y)[1]).max() < 1e-2
    mean, variance = gaussian_process.predict(theta, x, y, x_new[:50], group=30)
    assert gaussian_process.compare(theta, x, y, x_new[:50], mean, variance)
    # And that would find a difference.
    assert not gaussian_process.compare(theta, x, y, x_new[:50], mean + 1e-6, variance)


def test_no_device_has_a_whole_matrix():
    n = 12 * gaussian_process.MESH.size
    x, y = jax.ShapeDtypeStruct((n, 2), float), jax.ShapeDtypeStruct((n,), float)
    program = gaussian_process.loss.lower(gaussian_process.START, x, y).compile().as_text()
    assert f"[12,{n}]" in program
    assert f"[{n},{n}]" not in program
