"""Variational Monte Carlo with MinSR, in one or several processes, compared with exact energies.

    ./tools/bazel run //examples:minsr -- --plot /tmp/minsr.png
    python examples/minsr.py --model square --samples 1024
    python -m jaxmg.launch -n 2 --devices-per-process 2 examples/minsr.py

The example computes the ground state of Heisenberg's antiferromagnet on a ring of 16 spins and on a
square of 4 x 4, both periodic. In the basis rotated by Marshall's sign rule all amplitudes are
positive. So a real network can represent their logarithms: a restricted Boltzmann machine that is
invariant under all translations. Stochastic reconfiguration in the space of the samples (MinSR:
Chen and Heyl, Nature Physics 20, 1476, 2024) updates the parameters. O has a row for each sample
and a column for each parameter, T = O O^T, and e are the energies of the samples; O and e have
their means subtracted:

    theta <- theta - length * O^T (T + shift)^-1 e

The devices form a mesh ("S", "T"). O is sharded along both of its axes, samples over "T" and
parameters over "S". In addition to its shard, a device holds only O's entries of a few samples at a
time. T is computed from such pieces and summed over "S". Its rows are sharded over "T", and each
replica along "S" solves its own copy of the system.

Runs on the GPUs of JAX's default backend, or else on four CPU devices. The exit code is 1 if an
energy differs from exact diagonalization by more than 1e-3.
"""

import dataclasses
import functools
import os
import time

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from absl import app, flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

jax.config.update("jax_enable_x64", True)

_SHAPES = {"chain": (16,), "square": (4, 4)}
_MODEL = flags.DEFINE_enum("model", "both", [*_SHAPES, "both"], "which lattice")
_STEPS = flags.DEFINE_integer("steps", 80, "of the optimization", lower_bound=1)
_SAMPLES = flags.DEFINE_integer("samples", 256, "Markov chains, and the order of T", lower_bound=1)
_REPLICAS = flags.DEFINE_integer(
    "replicas", None, 'devices along "S"; by default two where their number is even', lower_bound=1
)
_DISTRIBUTED = flags.DEFINE_bool(
    "distributed", "JAX_COORDINATOR_ADDRESS" in os.environ,
    "call jax.distributed.initialize(): under SLURM and MPI; jaxmg.launch needs no word",
)  # fmt: skip
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")

FEATURES = 24  # of the network; each has a weight for each spin
SHIFT, LENGTH = 1e-3, 0.05
PIECES = 4  # number of pieces in which O and T are computed
LAST = 20  # steps whose mean is the result
LIMIT = 1e-3  # of the result's relative error


@dataclasses.dataclass(frozen=True)
class Lattice:
    """A periodic lattice of any dimension. Its lengths must be even, or Marshall's rule fails."""

    shape: tuple[int, ...]

    @property
    def sites(self):
        return np.arange(np.prod(self.shape)).reshape(self.shape)

    @property
    def bonds(self):
        """Pairs of neighbours, (bonds, 2)."""
        sites, axes = self.sites, range(len(self.shape))
        pairs = [np.stack([sites, np.roll(sites, -1, axis)], axis=-1) for axis in axes]
        return np.concatenate([pair.reshape(-1, 2) for pair in pairs])

    @property
    def translations(self):
        """For each translation, the site from which every spin comes, (sites, sites)."""
        sites, axes = self.sites, range(len(self.shape))
        return np.stack([np.roll(sites, by, axes).ravel() for by in np.ndindex(self.shape)])


def log_psi(theta, s, lattice):
    """Returns the logarithm of an amplitude, up to a constant; s has 1 or -1 for each site."""
    inputs = s[lattice.translations] @ theta.reshape(-1, len(s)).T
    return jnp.sum(jnp.logaddexp(inputs, -inputs))  # log cosh is even, like the state


def local_energy(theta, s, lattice):
    """Returns sum_t H_st psi(t) / psi(s). H exchanges neighbours that differ, with the element
    -1/2."""
    i, j = lattice.bonds.T
    others = jax.vmap(lambda i, j: s.at[i].set(s[j]).at[j].set(s[i]))(i, j)
    logs = jax.vmap(log_psi, (None, 0, None))(theta, others, lattice)
    ratios = jnp.exp(logs - log_psi(theta, s, lattice))
    return jnp.sum(jnp.where(s[i] == s[j], 0.25, -0.25 - ratios / 2))


def sweep(theta, s, key, lattice):
    """Returns a Markov chain's next sample: Metropolis with one trial per spin, each on a random
    bond."""

    def exchange(_, state):
        s, log, key = state
        key, which, chance = jax.random.split(key, 3)
        i, j = jax.random.choice(which, lattice.bonds)
        other = s.at[i].set(s[j]).at[j].set(s[i])
        other_log = log_psi(theta, other, lattice)
        accept = 2 * (other_log - log) > jnp.log(jax.random.uniform(chance))
        s, log = jax.tree.map(lambda a, b: jnp.where(accept, a, b), (other, other_log), (s, log))
        return s, log, key

    state = s, log_psi(theta, s, lattice), key
    return jax.lax.fori_loop(0, len(s), exchange, state)[0]


def derivatives(theta, s, lattice, mesh):
    """Returns this device's shard of O, (samples of its place in "T", parameters of its place in
    "S").

    The computation goes piece by piece: a device computes all derivatives of its samples in a
    piece, and sends to the other places in "S" the parameters that they hold.
    """
    places = mesh.shape["S"]
    pad = -len(theta) % places  # columns of zeros don't change T

    def part(s):
        rows = jax.vmap(jax.grad(log_psi), (None, 0, None))(theta, s, lattice)
        rows = jnp.pad(rows, ((0, 0), (0, pad)))
        return jax.lax.all_to_all(rows, "S", split_axis=1, concat_axis=0, tiled=True)

    o = jax.lax.map(part, s.reshape(PIECES, -1, s.shape[1]))
    # Samples are ordered by place in "S" first, then by piece.
    return o.reshape(PIECES, places, -1, o.shape[2]).swapaxes(0, 1).reshape(-1, o.shape[2])


def gram(o, mesh):
    """Returns the rows of T = O O^T of this device's place in "T", summed over "S".

    The computation goes piece by piece over T's columns; a piece has a few samples of every place
    in "T". In addition to its own shard, a device holds only these samples of O.
    """
    count, places = o.shape[0], mesh.shape["T"]
    pieces = o.reshape(PIECES, -1, o.shape[1])

    def fill(i, t):
        others = jax.lax.all_gather(pieces[i], "T")
        return t.at[:, :, i].set(jax.lax.psum(jnp.einsum("ik,pjk->ipj", o, others), "S"))

    t = jnp.zeros((count, places, *pieces.shape[:2]), o.dtype)
    return jax.lax.fori_loop(0, PIECES, fill, t).reshape(count, -1)


@functools.partial(jax.jit, static_argnums=(3, 4))
def step(theta, s, seed, lattice, mesh):
    """Returns (parameters, samples, energies of the samples, status of the solution) after a step.

    Args:
        theta: (parameters,), on every device.
        s: (samples, sites), sharded over all devices.
        seed: an integer that differs in every step.
    """
    samples = len(s)

    def device(theta, s, keys):
        s = jax.vmap(sweep, (None, 0, 0, None))(theta, s, keys, lattice)
        energies = jax.vmap(local_energy, (None, 0, None))(theta, s, lattice)
        o = derivatives(theta, s, lattice, mesh)
        o = (o - jax.lax.psum(o.sum(axis=0), "T") / samples) / np.sqrt(samples)
        return s, jax.lax.all_gather(energies, ("T", "S"), tiled=True), o, gram(o, mesh)

    s, energies, o, t = jax.shard_map(
        device, mesh=mesh, in_specs=(P(), P(("T", "S")), P(("T", "S"))),
        out_specs=(P(("T", "S")), P(), P("T", "S"), P("T", None)),
        check_vma=False,  # JAX treats the result of all_gather as varying over devices
    )(theta, s, jax.random.split(jax.random.key(seed), samples))  # fmt: skip
    residual = (energies - energies.mean()) / np.sqrt(samples)
    x, status = jaxmg.potrs(
        t + SHIFT * jnp.eye(samples), residual, mesh=mesh, in_specs=P("T", None), return_status=True
    )
    theta = theta - LENGTH * (x @ o)[: len(theta)]
    everywhere = NamedSharding(mesh, P())
    return jax.lax.with_sharding_constraint(theta, everywhere), s, energies, status


def start(lattice, samples, mesh):
    """Returns (small random parameters, random samples with equal numbers of spins up and down)."""

    def draw():
        key, *keys = jax.random.split(jax.random.key(0), samples + 1)
        sites = lattice.sites.size
        theta = 0.05 * jax.random.normal(key, (FEATURES * sites,))
        ordered = jnp.where(jnp.arange(sites) % 2, 1.0, -1.0)
        return theta, jax.vmap(jax.random.permutation, (0, None))(jnp.stack(keys), ordered)

    spread = NamedSharding(mesh, P()), NamedSharding(mesh, P(("T", "S")))
    return jax.jit(draw, out_shardings=spread)()


def optimize(lattice, mesh, steps, samples):
    """Returns the mean energy of every step."""
    theta, s = start(lattice, samples, mesh)
    history = []
    for i in range(1, steps + 1):
        theta, s, energies, status = jax.block_until_ready(step(theta, s, i, lattice, mesh))
        if status:
            raise FloatingPointError(f"step {i}: T + {SHIFT} is not positive definite")
        history.append(float(energies.mean()))
        if i % 20 == 0:
            say(f"  step {i:4}: {history[-1]:.8f}")
    return np.array(history)


def ground_state_energy(lattice):
    """Returns the energy from exact diagonalization among states with equal numbers of spins up and
    down."""
    sites = lattice.sites.size
    states = np.arange(2**sites)
    states = states[np.bitwise_count(states) == sites // 2]
    matrix = scipy.sparse.csr_matrix((len(states),) * 2)
    for i, j in lattice.bonds:
        differ = (states >> i ^ states >> j) & 1 == 1
        exchanged = np.searchsorted(states, states[differ] ^ (1 << i | 1 << j))
        entries = np.full(len(exchanged), -0.5), (np.flatnonzero(differ), exchanged)
        matrix += scipy.sparse.csr_matrix(entries, matrix.shape)
        matrix += scipy.sparse.diags_array(np.where(differ, -0.25, 0.25))
    return scipy.sparse.linalg.eigsh(matrix, 1, which="SA", return_eigenvectors=False)[0]


def mesh_of(devices, replicas=None):
    """Returns the mesh ("S", "T"). Devices of one process are neighbours in "T"."""
    replicas = replicas or 2 - len(devices) % 2
    if len(devices) % replicas:
        raise app.UsageError(f"--replicas must divide the {len(devices)} devices; got {replicas}")
    return Mesh(np.array(devices).reshape(replicas, -1), ("S", "T"))


def say(*words):
    if jax.process_index() == 0:
        print(*words, flush=True)


def main(_):
    """Optimizes, compares with the exact energies, and returns the exit code."""
    if _DISTRIBUTED.value:
        jax.distributed.initialize()
    mesh = mesh_of(jax.devices(), _REPLICAS.value)
    if _SAMPLES.value % (mesh.size * PIECES):
        raise app.UsageError(
            f"--samples must be a multiple of {mesh.size * PIECES}, {PIECES} for each device; "
            f"got {_SAMPLES.value}"
        )
    say(f"{_SAMPLES.value} samples; {mesh.shape['S']} x {mesh.shape['T']} "
        f"{mesh.devices.flat[0].device_kind}, {jax.process_count()} process(es)")  # fmt: skip
    results, good = {}, True
    for name in _SHAPES if _MODEL.value == "both" else [_MODEL.value]:
        lattice, begin = Lattice(_SHAPES[name]), time.perf_counter()
        say(f"{name}, {FEATURES * lattice.sites.size} parameters ...")
        history = optimize(lattice, mesh, _STEPS.value, _SAMPLES.value)
        seconds = time.perf_counter() - begin
        exact, found = ground_state_energy(lattice), history[-LAST:].mean()
        error = abs(found / exact - 1)
        good &= bool(error < LIMIT)
        say(f"  {found:.6f}, exactly {exact:.6f}: off by {error:.1e}; {seconds:.1f} s")
        results[name] = history, exact
    if _PLOT.value and jax.process_index() == 0:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        draw(_PLOT.value, results)
    say("all right" if good else "WRONG")
    return 0 if good else 1


def draw(path, results):
    """Writes a picture: the energy over the steps above, its relative error below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rc("font", size=15)  # for phones
    figure, axes = plt.subplots(
        2, len(results), figsize=(4.6 * len(results), 7.6), layout="constrained", sharex=True,
        squeeze=False, facecolor="white",
    )  # fmt: skip
    for (above, below), (name, (history, exact)) in zip(axes.T, results.items(), strict=True):
        sites, steps = np.prod(_SHAPES[name]), np.arange(1, len(history) + 1)
        above.plot(steps, history / sites, label="MinSR")
        above.axhline(exact / sites, color="k", linestyle="--", label="exact")
        shape = " x ".join(map(str, _SHAPES[name]))
        above.set(title=f"{name} of {shape} spins", ylabel="energy a spin")
        above.legend()
        below.semilogy(steps, abs(history / exact - 1))
        below.axhline(LIMIT, color="tab:red", linestyle=":", label=f"limit of the mean of {LAST}")
        below.set(xlabel="step", ylabel="relative error")
        below.legend()
        for axis in (above, below):
            axis.grid(alpha=0.3)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    print(path)


if __name__ == "__main__":
    app.run(main)
