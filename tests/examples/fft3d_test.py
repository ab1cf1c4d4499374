"""The transform of a field in slabs is that of NumPy, and JAX differentiates it."""

import fft3d
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

SHAPE = (8, 16, 6)
RANKS = [1, 2, 4]
REAL = {"float32": True, "float64": True, "complex64": False, "complex128": False}


def mesh_of(ranks):
    return Mesh(np.array(jax.devices()[:ranks]), ("rank",))


def field_of(dtype, shape=SHAPE):
    random = np.random.default_rng(0)
    field = random.standard_normal(shape)
    return (field if REAL[dtype] else field + 1j * random.standard_normal(shape)).astype(dtype)


def there_and_back(mesh, chunks=1):
    """A compiled program: the spectrum and the field that it gives."""

    @jax.jit
    def run(field):
        spectrum = fft3d.fftn(field, mesh, chunks)
        n2 = None if jnp.iscomplexobj(field) else field.shape[2]
        return spectrum, fft3d.ifftn(spectrum, mesh, n2)

    return run


def ordered(spectrum):
    return np.asarray(jax.jit(fft3d.ordered)(spectrum))


@pytest.mark.parametrize(
    "ranks, dtype",
    [(ranks, dtype) for ranks in RANKS for dtype in REAL if ranks == 4 or dtype.endswith("64")],
)
def test_spectrum_is_that_of_one_device_and_comes_back(ranks, dtype):
    field = field_of(dtype)
    spectrum, back = there_and_back(mesh_of(ranks))(field)
    expected = np.asarray((jnp.fft.rfftn if REAL[dtype] else jnp.fft.fftn)(field))
    unit = np.finfo(dtype).eps
    assert spectrum.dtype == expected.dtype and back.dtype == dtype
    for found, right in ((ordered(spectrum), expected), (np.asarray(back), field)):
        assert abs(found - right).max() <= 8 * unit * abs(right).max()
    for array in (spectrum, back):
        slabs = {shard.data.shape for shard in array.addressable_shards}
        assert slabs == {(array.shape[0] // ranks, *array.shape[1:])}


def test_an_exchange_in_parts_gives_the_same():
    field = field_of("float64")
    parts, _ = there_and_back(mesh_of(4), chunks=2)(field)
    np.testing.assert_allclose(ordered(parts), np.fft.rfftn(field), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("real", [False, True])
def test_wavenumbers_are_where_they_are_said_to_be(real):
    wave = (-3, 5, 2)
    places = np.meshgrid(*(np.arange(n) / n for n in SHAPE), indexing="ij")
    field = np.exp(2j * np.pi * sum(m * x for m, x in zip(wave, places, strict=True)))
    spectrum, _ = there_and_back(mesh_of(4))(field.real if real else field)
    (place,) = np.argwhere(abs(np.asarray(spectrum)) > 0.4 * field.size)
    ms = jax.jit(fft3d.wavenumbers, static_argnums=(0, 1))(SHAPE, real)
    found = [np.broadcast_to(m, spectrum.shape)[tuple(place)] for m in ms]
    assert tuple(found) == wave


@pytest.mark.parametrize(
    "ranks, dtype", [*((ranks, "float64") for ranks in RANKS), (4, "complex128")]
)
def test_gradient_is_that_of_finite_differences(ranks, dtype):
    mesh, field = mesh_of(ranks), field_of(dtype)
    weights = np.random.default_rng(1).standard_normal((SHAPE[1], 1, SHAPE[0]))
    n2 = field.shape[2] if REAL[dtype] else None

    @jax.jit
    @jax.value_and_grad
    def loss(t, direction):
        filtered = jnp.exp(t * weights) * fft3d.fftn(field + t * direction, mesh)
        return jnp.sum(abs(fft3d.ifftn(filtered, mesh, n2)) ** 4)

    direction = np.random.default_rng(2).standard_normal(SHAPE)
    step = 1e-3
    slopes = [(loss(t, direction)[0] - loss(-t, direction)[0]) / (2 * t) for t in (step, 2 * step)]
    expected = (4 * slopes[0] - slopes[1]) / 3  # fourth order
    assert abs(loss(0.0, direction)[1] / expected - 1) < 1e-7


@pytest.mark.parametrize(
    "shape, message",
    [
        ((8, 8), r"fftn: field must have three axes; it has shape \(8, 8\)"),
        ((6, 8, 8), r"fftn: the 4 devices of the mesh must divide axis 0 of field"),
        ((8, 6, 8), r"fftn: the 4 devices of the mesh must divide axis 1 of field"),
    ],
)
def test_grids_that_no_slabs_are_made_of(shape, message):
    with pytest.raises(ValueError, match=message):
        fft3d.fftn(np.zeros(shape), mesh_of(4))


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match="chunks must divide the 4 wavenumbers .* got chunks=3"):
        fft3d.fftn(np.zeros(SHAPE), mesh_of(4), chunks=3)
    with pytest.raises(ValueError, match="n2=6 has 4 wavenumbers along its second axis; it has 6"):
        fft3d.ifftn(np.zeros((16, 6, 8), complex), mesh_of(4), n2=6)
