"""The Gaussian process out of core is scikit-learn's, and predictions are those of NumPy."""

import host_gaussian_process
import numpy as np

N = 203  # which no number of devices divides
MEMORY = 2e5


def test_is_scikit_learns():
    _, x, y, (x_new, _) = host_gaussian_process.terrain(N)
    theta, values = host_gaussian_process.fit(x, y, MEMORY, 3)
    assert values[-1] > values[0]
    assert host_gaussian_process.compare(theta, x, y, MEMORY)
    mean = host_gaussian_process.predict(theta, x, y, x_new[:70], MEMORY, group=30)
    index = np.arange(N)
    a = np.asarray(host_gaussian_process.entries(index, index, x, theta))
    between = np.asarray(host_gaussian_process.between(theta, x_new[:70], x))
    expected = between @ np.linalg.solve(a, y)
    np.testing.assert_allclose(mean, expected, atol=1e-8 * np.abs(expected).max())
