"""Far fields are those of series, of point sources and of a book; each wrong one is noticed."""

import jax
import numpy as np
import pytest
import scattering
import scipy.special
from hankel import hankel01

ANGLES = np.linspace(0, 2 * np.pi, 64, endpoint=False)


def test_hankel_functions_are_scipys():
    x = np.concatenate([np.geomspace(1e-6, 10, 3000), np.linspace(7.9, 500, 3000)])
    for order, values in enumerate(jax.jit(hankel01)(x)):
        np.testing.assert_allclose(values, scipy.special.hankel1(order, x), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("points", [12, 22, 48])
def test_weights_integrate_with_the_logarithm(points):
    """log(4 sin(s / 2)^2) is minus the sum of 2 cos(m s) / m."""
    weights, s = scattering.kress_weights(points), 2 * np.pi / points * np.arange(points)
    for m in range(points // 2):
        exact = -2 * np.pi / m if m else 0
        np.testing.assert_allclose(weights @ np.cos(m * s), exact, rtol=0, atol=1e-13)
        np.testing.assert_allclose(weights @ np.sin(m * s), 0, rtol=0, atol=1e-13)


def test_kite_is_that_of_colton_and_kress():
    """Table 3.1 of the book has u(d) and u(-d) of a kite alone, for a wave with d = (1, 0)."""
    whole, _ = scattering.obstacles("kite", 96)
    rows = whole.obstacle == 1
    kite = scattering.Boundary(
        whole.x[rows] - scattering.KITE, whole.normal[rows], whole.bend[rows], 0 * np.arange(96)
    )
    for k, forward, backward in (
        (1.0, -1.62745750 + 0.60222591j, 1.39694488 + 0.09499635j),
        (5.0, -2.47554380 + 1.68747937j, -0.19945787 + 0.06015894j),
    ):
        waves = scattering.plane_waves(k, kite, np.zeros(1))
        density = scattering.solve(k, kite, *scattering.terms(k, kite), waves)
        found = scattering.far_field(k, kite, density, np.array([0, np.pi]))
        np.testing.assert_allclose(found[:, 0], [forward, backward], rtol=0, atol=1.5e-8)


@pytest.mark.parametrize("scene, sizes", [("disks", (18, 26, 50)), ("kite", (26, 50, 98))])
def test_errors_fall_exponentially(scene, sizes):
    errors = [scattering.one_error(scene, 4.0, points, ANGLES) for points in sizes]
    assert errors[0] < 0.5
    assert errors[2] < 1e-13 < 1e-3 * errors[1] < 1e-4 * errors[0]


def test_series_of_one_disk_is_mies():
    """Its coefficients are -J_m(k a) / H_m(k a), wherever the disk lies."""
    k, centre, radius = 3.0, np.array([0.5, -2.0]), 1.3
    m = np.arange(-40, 41)
    ratio = scipy.special.jv(m, k * radius) / scipy.special.hankel1(m, k * radius)
    waves = np.exp(1j * np.subtract.outer(ANGLES, ANGLES)[..., None] * m) @ ratio
    between = (scattering.unit(ANGLES)[:, None] - scattering.unit(ANGLES)) @ centre
    exact = -np.sqrt(2 / (np.pi * k)) * np.exp(-1j * (np.pi / 4 + k * between)) * waves
    found = scattering.series(k, np.array([[*centre, radius]]), ANGLES, ANGLES)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-13)


@pytest.fixture(scope="module")
def solved():
    k, (boundary, sources) = 3.0, scattering.obstacles("kite", 82)  # 164 unknowns
    factor = scattering.factorize(k, boundary, *scattering.terms(k, boundary))
    return k, boundary, sources, factor


def test_one_factor_serves_all(solved):
    k, boundary, sources, factor = solved
    assert factor.status == 0
    density = factor.solve(scattering.plane_waves(k, boundary, ANGLES))
    pattern = scattering.far_field(k, boundary, density, ANGLES)
    assert scattering.energy_error(k, pattern) < 1e-12
    assert scattering.reciprocity_error(pattern) < 1e-12
    # And either of them finds what is wrong.
    assert scattering.energy_error(k, pattern * (1 + 1e-9)) > 1e-10
    assert scattering.energy_error(k, pattern.conj()) > 1e-10
    assert scattering.reciprocity_error(pattern * (1 + 1e-9 * np.cos(ANGLES))) > 1e-10
    given, exact = scattering.point_sources(k, boundary, sources, ANGLES)
    found = scattering.far_field(k, boundary, factor.solve(given), ANGLES)
    assert scattering.relative_error(found, exact) < 1e-12


def test_field_nearby(solved):
    """That of a source within an obstacle is the source's own."""
    k, boundary, sources, factor = solved
    given, _ = scattering.point_sources(k, boundary, sources, ANGLES)
    x = 4 * scattering.unit(ANGLES)
    distance = np.linalg.norm(x - sources[1], axis=1)
    density = factor.solve(given)[:, 1]
    np.testing.assert_allclose(
        scattering.near_field(k, boundary, density, x),
        0.25j * scipy.special.hankel1(0, k * distance), rtol=0, atol=1e-12,
    )  # fmt: skip


def test_no_device_has_a_whole_matrix():
    points = 12 * scattering.MESH.size
    boundary, _ = scattering.obstacles("kite", points)
    arguments = 3.0, boundary, *scattering.terms(3.0, boundary)
    program = scattering.factorize.lower(*arguments).compile().as_text()
    n = 2 * points
    assert f"c128[{n // scattering.MESH.size},{n}]" in program
    assert f"[{n},{n}]" not in program
