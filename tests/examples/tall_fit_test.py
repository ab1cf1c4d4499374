"""What is read in blocks is the whole matrix, and its fit NumPy's."""

import jax
import numpy as np
import pytest
import tall_fit

import jaxmg


@pytest.mark.parametrize("block", [50, 10_000])
def test_blocks_are_the_matrix(tmp_path, block):
    shape, degree = (23, 31), 3
    heights = np.random.default_rng(0).standard_normal(shape)
    np.save(tmp_path / "heights.npy", heights.ravel())
    a, b = tall_fit.read(tmp_path / "heights.npy", shape, degree, block)
    exact = tall_fit.terms(np.arange(heights.size), shape, degree)
    assert len(a.sharding.device_set) == jax.device_count()
    np.testing.assert_array_equal(a[: heights.size], exact)
    np.testing.assert_array_equal(b[: heights.size], heights.ravel())
    assert not np.any(a[heights.size :])
    x = jaxmg.linalg.lstsq(a, b)[0]
    np.testing.assert_allclose(x, tall_fit.by_numpy(heights, degree), atol=1e-12)
    fit = tall_fit.fitted(x, shape)
    np.testing.assert_allclose(fit.ravel(), exact @ np.asarray(x), atol=1e-12)


def test_the_file_has_all_heights(tmp_path):
    path, shape = tall_fit.write(tmp_path)
    heights = np.load(path)
    assert heights.shape == (shape[0] * shape[1],) and abs(heights.mean()) < 1e-9
