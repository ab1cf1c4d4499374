"""MinSR in shards takes the steps of a plain one; its energies are those of the whole matrix."""

import functools

import jax
import jax.numpy as jnp
import minsr
import numpy as np
import pytest
from absl import app
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RING = minsr.Lattice((6,))
LATTICES = [
    RING,
    minsr.Lattice((2, 4)),
]  # of the second each pair along its first axis has two bonds
MESHES = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1)]  # places along "S", "T"


def mesh_of(places):
    return Mesh(np.array(jax.devices()[: np.prod(places)]).reshape(places), ("S", "T"))


def network(lattice, features=3):
    """Parameters that make amplitudes differ."""
    return 0.3 * np.random.default_rng(0).standard_normal(features * lattice.sites.size)


def hamiltonian(lattice, sign):
    """In the basis of all states, site 0 the last; -1 for x and y is the rotated one."""
    x, y = np.array([[0, 0.5], [0.5, 0]]), np.array([[0, -0.5j], [0.5j, 0]])
    z = np.diag([0.5, -0.5])
    sites = lattice.sites.size

    def product(matrix, i, j):
        factors = [matrix if site in (i, j) else np.eye(2) for site in range(sites)]
        return functools.reduce(np.kron, factors[::-1])

    return sum(
        product(z, i, j) + sign * (product(x, i, j) + product(y, i, j)).real
        for i, j in lattice.bonds
    )


def states(lattice):
    """(numbers of the states of as many spins up as down, their spins)."""
    sites = lattice.sites.size
    bits = np.arange(2**sites)[:, None] >> np.arange(sites) & 1
    chosen = np.flatnonzero(bits.sum(axis=1) == sites // 2)
    return chosen, 1.0 - 2 * bits[chosen]


def amplitudes(theta, lattice):
    logs = jax.vmap(minsr.log_psi, (None, 0, None))(theta, states(lattice)[1], lattice)
    return np.exp(logs - np.max(logs))


@pytest.mark.parametrize("lattice", LATTICES, ids=str)
def test_local_energies_are_the_matrixs(lattice):
    theta, (chosen, spins) = network(lattice), states(lattice)
    psi = amplitudes(theta, lattice)
    assert psi.min() < 0.5
    expected = hamiltonian(lattice, -1)[np.ix_(chosen, chosen)] @ psi / psi
    found = jax.vmap(minsr.local_energy, (None, 0, None))(theta, spins, lattice)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("lattice", LATTICES, ids=str)
def test_exact_energy_is_the_one_before_the_rotation(lattice):
    expected = np.linalg.eigvalsh(hamiltonian(lattice, 1))[0]
    np.testing.assert_allclose(minsr.ground_state_energy(lattice), expected, rtol=1e-12)


@pytest.mark.parametrize("lattice", LATTICES, ids=str)
def test_amplitudes_have_the_lattices_symmetries(lattice):
    theta, spins = network(lattice), states(lattice)[1][7]
    images = jnp.concatenate([spins[lattice.translations], -spins[lattice.translations]])
    logs = jax.vmap(minsr.log_psi, (None, 0, None))(theta, images, lattice)
    np.testing.assert_allclose(logs, logs[0], rtol=1e-13)
    assert len(np.unique(lattice.translations, axis=0)) == spins.size


def test_chains_visit_states_as_often_as_they_should():
    theta, (chosen, spins) = network(RING), states(RING)
    chains, sweeps = 8192, 30

    @jax.jit
    def run(s):
        def sweep(i, s):
            keys = jax.random.split(jax.random.key(i), chains)
            return jax.vmap(minsr.sweep, (None, 0, 0, None))(theta, s, keys, RING)

        return jax.lax.fori_loop(0, sweeps, sweep, s)

    s = np.asarray(run(jnp.tile(spins[0], (chains, 1))))
    numbers = (s < 0) @ (1 << np.arange(spins.shape[1]))
    counts = (numbers[:, None] == chosen).sum(axis=0)
    assert counts.sum() == chains  # no other state
    p = amplitudes(theta, RING) ** 2
    p /= p.sum()
    assert p.max() > 3 * p.min()
    assert abs(counts - chains * p).max() < 4 * np.sqrt(chains * p.max())


@pytest.mark.parametrize("places", MESHES, ids=str)
def test_gram_matrix_is_the_plain_one_on_every_replica(places):
    mesh = mesh_of(places)
    o = np.random.default_rng(0).standard_normal((32, 12))
    gram = jax.shard_map(
        lambda o: minsr.gram(o, mesh), mesh=mesh, in_specs=P("T", "S"), out_specs=P("T", None),
        check_vma=False,
    )  # fmt: skip
    t = jax.jit(gram)(jax.device_put(o, NamedSharding(mesh, P("T", "S"))))
    assert len(t.addressable_shards) == mesh.size
    for shard in t.addressable_shards:
        assert shard.data.shape == (32 // places[1], 32)
        np.testing.assert_allclose(shard.data, (o @ o.T)[shard.index], rtol=1e-12, atol=1e-13)


@functools.cache
def plain_step(samples):
    """(parameters before, samples after a sweep, parameters after), but for the sweep in NumPy."""
    theta = network(RING)
    s = np.random.default_rng(1).permuted(np.tile([1.0, -1.0], (samples, 3)), axis=1)
    keys = jax.random.split(jax.random.key(5), samples)
    after = np.asarray(jax.vmap(minsr.sweep, (None, 0, 0, None))(theta, s, keys, RING))
    energies = np.asarray(jax.vmap(minsr.local_energy, (None, 0, None))(theta, after, RING))
    images = after[:, RING.translations]
    tanh = np.tanh(np.einsum("sti,fi->stf", images, theta.reshape(3, -1)))
    o = np.einsum("stf,sti->sfi", tanh, images).reshape(samples, -1)
    o, e = ((x - x.mean(axis=0)) / np.sqrt(samples) for x in (o, energies))
    update = o.T @ np.linalg.solve(o @ o.T + minsr.SHIFT * np.eye(samples), e)
    return theta, s, after, energies, theta - minsr.LENGTH * update


@pytest.mark.parametrize("places", MESHES, ids=str)
def test_step_is_the_plain_one(places):
    """18 parameters, which four places along "S" don't divide."""
    theta, s, after, energies, expected = plain_step(samples=32)
    found, samples, found_energies, status = minsr.step(theta, s, 5, RING, mesh_of(places))
    assert status == 0
    np.testing.assert_array_equal(samples, after)
    np.testing.assert_allclose(found_energies, energies, rtol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
    assert abs(expected - theta).max() > 1e-3


def test_no_device_has_a_whole_matrix():
    samples, parameters, mesh = 48, 60, mesh_of((2, 2))
    theta, s = (jax.ShapeDtypeStruct(shape, float) for shape in ((parameters,), (samples, 6)))
    program = minsr.step.lower(theta, s, 0, RING, mesh).compile().as_text()
    assert "f64[24,30]" in program and "f64[24,48]" in program  # O's part and T's
    for whole in ("48,60", "24,60", "48,30", "48,48"):
        assert f"f64[{whole}]" not in program


def test_optimization_finds_the_ground_state_on_any_devices():
    exact = minsr.ground_state_energy(RING)
    histories = [minsr.optimize(RING, mesh_of(places), 60, 64) for places in ((1, 1), (2, 2))]
    for history in histories:
        assert abs(history[-10:].mean() / exact - 1) < 1e-3 < abs(history[0] / exact - 1)
    np.testing.assert_allclose(*(history[:5] for history in histories), rtol=1e-8)


def test_a_matrix_that_is_not_positive_definite_ends_it(monkeypatch):
    monkeypatch.setattr(minsr, "SHIFT", -1.0)
    with pytest.raises(FloatingPointError, match="step 1: T . -1.0 is not positive definite"):
        minsr.optimize(minsr.Lattice((4,)), mesh_of((1, 2)), 3, 16)


def test_meshes():
    shapes = [minsr.mesh_of(jax.devices()[:n]).devices.shape for n in (1, 2, 3, 4)]
    assert shapes == [(1, 1), (2, 1), (1, 3), (2, 2)]
    assert minsr.mesh_of(jax.devices(), 1).devices.shape == (1, 4)
    with pytest.raises(app.UsageError, match="--replicas must divide the 4 devices; got 3"):
        minsr.mesh_of(jax.devices(), 3)
