"""Components are scikit-learn's, and wrong ones are noticed."""

import numpy as np
import principal_components
from sklearn.decomposition import PCA


def test_components_are_scikit_learns():
    x, _ = principal_components.images(2)
    x = x[:3001]
    a = principal_components.centred(x)
    model = PCA(5, svd_solver="full").fit(x)
    variances, components = principal_components.by_svd(a, len(x))
    assert max(principal_components.differences(variances[:5], components[:5], model)) < 1e-9
    variances, components, error = principal_components.by_projection(a, len(x), 5)
    assert max(principal_components.differences(variances, components, model)) < 1e-2
    rest = (x - x.mean(axis=0)) @ (np.eye(64) - np.asarray(components).T @ np.asarray(components))
    assert np.linalg.norm(rest, 2) <= error
    assert max(principal_components.differences(variances, components[::-1], model)) > 0.1


def test_copies_are_shifted():
    x, digits = principal_components.images(25)
    assert x.shape == (25 * 1797, 64) and len(digits) == len(x)
    x = x.reshape(25, 1797, 64)
    assert len({each.tobytes() for each in x}) == 25
    pixels = np.sort(x)
    assert np.all(pixels == pixels[0])
