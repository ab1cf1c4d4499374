"""The likelihood of a Gaussian random field: a distributed FFT feeds a distributed solve.

    ./tools/bazel run //examples:random_field -- --plot /tmp/random_field.png
    python examples/random_field.py --grid 256 --pixels 16384       for GPUs
    python examples/random_field.py --fft_bench 1024

A field with the power spectrum P(k) = A (k / k0)^s is drawn on a periodic grid that is cut into
slabs, one per device. Its band powers are estimated from the whole grid. Then it is observed only
at some pixels in a corner of the grid, and with noise, as surveys observe the sky. The Fourier
modes of such data are not independent, but the likelihood is exact: the pixels are normal with the
covariance

    C_ij = xi(r_i - r_j) + noise^2 delta_ij       where xi is the inverse Fourier transform of P(k)

and the fit finds the A and s that maximize it. `fft3d` computes xi, each device computes its rows
of C, jaxmg factors C, and JAX differentiates all of this.

Runs on the GPUs of JAX's default backend, or else on four CPU devices. The exit code is 1 if the
likelihood's gradient differs from finite differences, or if the estimates differ from the truth.
"""

import functools
import json
import os
import time

import cpu_devices  # noqa: F401  before JAX
import fft3d
import fft_bench
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from absl import app, flags
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from likelihood import log_density

jax.config.update("jax_enable_x64", True)

_GRID = flags.DEFINE_integer("grid", 64, "points along each axis of the box", lower_bound=8)
_PIXELS = flags.DEFINE_integer("pixels", 1024, "points that are seen", lower_bound=4)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")
_BENCH = flags.DEFINE_integer(
    "fft_bench", None, "only time the transform of a complex64 field of so many points along each "
    "axis, and print a line of JSON", lower_bound=4,
)  # fmt: skip
_REPEATS = flags.DEFINE_integer("repeats", 5, "runs of --fft_bench", lower_bound=1)
_CHUNKS = flags.DEFINE_integer("fft_chunks", 1, "parts of its exchange", lower_bound=1)

MESH = Mesh(np.array(jax.devices()), ("rank",))
PIVOT = 2 * np.pi / 4  # k0, in radians per grid spacing
TRUTH = np.array([np.log(2.5), -2.0])  # log A, s
START = np.array([np.log(2.0), -1.5])
NOISE = 0.3  # the field itself has a standard deviation of about 1
NAMES = ("log A", "s")


def main(_):
    """Draws a field, estimates its spectrum in two ways, and returns the exit code."""
    if _BENCH.value:
        record = fft_bench.record(_BENCH.value, MESH, _REPEATS.value, _CHUNKS.value)
        print(json.dumps(record))
        return 0 if max(record["errors"].values()) < 1e-5 else 1
    n = _GRID.value
    if _PIXELS.value % MESH.size or _PIXELS.value > corner(n) ** 3:
        raise app.UsageError(
            f"--pixels must be a multiple of the {MESH.size} devices and at most "
            f"{corner(n) ** 3}, the points of the corner of a grid of {n}; got {_PIXELS.value}"
        )
    print(f"a grid of {n}^3; {MESH.size} {MESH.devices.flat[0].device_kind}", flush=True)
    field = draw_field(jax.random.key(0), n)
    bands = [np.asarray(x) for x in band_powers(field)]
    k, measured, modes = (x[1 : n // 2] for x in bands)
    # A band of m independent modes has a relative deviation of sqrt(2 / m).
    pulls = (measured / power(TRUTH, k) - 1) / np.sqrt(2 / modes)
    print(f"  {len(k)} band powers, {np.sqrt(np.mean(pulls**2)):.2f} deviations from P(k)")

    pixels, data = observe(field, _PIXELS.value)
    theta, deviations = fit(n, pixels, data)
    off = (theta - TRUTH) / deviations
    for values in zip(NAMES, theta, deviations, TRUTH, strict=True):
        print("  {:<6}{:8.4f} +- {:.4f}, in truth {:.4f}".format(*values))
    difference = gradient_error(n, pixels, data)
    print(f"gradient and finite differences differ by {difference:.1e}")

    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        draw(_PLOT.value, field, (k, measured, modes), pixels, data, theta, deviations)
    good = np.sqrt(np.mean(pulls**2)) < 2 and np.abs(off).max() < 4 and difference < 1e-6
    print("all right" if good else "WRONG")
    return 0 if good else 1


def power(theta, k):
    """Returns P(k) = A (k / k0)^s, and 0 at k = 0: the field has no mean."""
    safe = jnp.where(k > 0, k, PIVOT)
    return jnp.where(k > 0, jnp.exp(theta[0] + theta[1] * jnp.log(safe / PIVOT)), 0)


def radius(n):
    """Returns |m| of each wavenumber of a real field's spectrum, in periods along the box."""
    return jnp.sqrt(sum(m.astype(float) ** 2 for m in fft3d.wavenumbers((n, n, n), real=True)))


@functools.partial(jax.jit, static_argnums=1)
def draw_field(key, n):
    """Returns a field with the true spectrum: white noise, multiplied by sqrt(P) in Fourier
    space."""
    white = fft3d.fftn(jax.random.normal(key, (n, n, n)), MESH)
    return fft3d.ifftn(white * jnp.sqrt(power(TRUTH, 2 * jnp.pi / n * radius(n))), MESH, n2=n)


@jax.jit
def band_powers(field):
    """Returns (mean k, power, modes) in shells of width 1 around |m| = 0, 1, 2, ..."""
    n = len(field)
    m = radius(n)
    # A real field's spectrum is Hermitian: the other half repeats the stored modes.
    m2 = fft3d.wavenumbers((n, n, n), real=True)[2]
    weights = jnp.broadcast_to(jnp.where((m2 == 0) | (2 * m2 == n), 1.0, 2.0), m.shape)
    powers = abs(fft3d.fftn(field, MESH)) ** 2 / n**3

    def shells(m, weights, powers):
        shell = jnp.round(m).astype(int).ravel()
        length = n  # the corners lie at sqrt(3) n / 2 < n
        sums = [
            jnp.zeros(length).at[shell].add(x.ravel())
            for x in (weights * m, weights * powers, weights)
        ]
        return jax.lax.psum(jnp.stack(sums), MESH.axis_names)

    cut = P(MESH.axis_names)
    shells = jax.shard_map(shells, mesh=MESH, in_specs=(cut, cut, cut), out_specs=P())
    m, powers, modes = shells(m, weights, powers)
    return 2 * jnp.pi / n * m / modes, powers / modes, modes


def observe(field, count):
    """Returns (the places of some pixels in the grid's corner, the data observed there)."""
    side = corner(len(field))
    random = np.random.default_rng(1)
    chosen = random.choice(side**3, count, replace=False)
    pixels = np.stack(np.unravel_index(chosen, (side,) * 3), axis=1).astype("int32")
    seen = np.asarray(field[:side, :side, :side])[tuple(pixels.T)]
    return pixels, seen + NOISE * random.standard_normal(count)


def corner(n):
    """Returns the side of the observed corner of a grid."""
    return n // 4


def covariance(theta, n, pixels):
    """Returns the covariance matrix of the pixels. Each device makes its own rows and holds xi of
    the corner."""
    side = corner(n)
    k = 2 * jnp.pi / n * radius(n)
    # P(k) and hence xi are even along each axis, so only distances along each axis matter.
    xi = fft3d.ifftn(power(theta, k) + 0j, MESH, n2=n)[:side, :side, :side]

    def rows(mine, pixels, xi):
        x, y, z = (jnp.abs(mine[:, None, i] - pixels[:, i]) for i in range(3))
        return xi.ravel()[(x * side + y) * side + z]

    signal = jax.shard_map(
        rows, mesh=MESH, in_specs=(P(MESH.axis_names), P(), P()), out_specs=P(MESH.axis_names)
    )(pixels, pixels, xi)
    return signal + NOISE**2 * jnp.eye(len(pixels))


@functools.partial(jax.jit, static_argnums=1)
def log_likelihood(theta, n, pixels, data):
    # Recomputes the matrix for the derivative, so that its intermediate results aren't stored.
    a = jax.checkpoint(covariance, static_argnums=1)(theta, n, pixels)
    return log_density(a, data, MESH)


loss = jax.jit(jax.value_and_grad(lambda *arguments: -log_likelihood(*arguments)), static_argnums=1)


def fit(n, pixels, data):
    """Returns (the most likely log A and s, their standard deviations)."""
    print(f"a likelihood of {len(data)} pixels ...", flush=True)
    jax.block_until_ready(loss(START, n, pixels, data))
    calls, start = 0, time.perf_counter()

    def evaluate(theta):
        nonlocal calls
        calls += 1
        value, gradient = jax.block_until_ready(loss(theta, n, pixels, data))
        return float(value), np.asarray(gradient)

    found = scipy.optimize.minimize(evaluate, START, jac=True, method="L-BFGS-B")
    each = (time.perf_counter() - start) / calls
    print(f"  {calls} gradients, {each:.3f} s each; log-likelihood {-found.fun:.4f}")
    # Computes the curvature at the maximum from gradients.
    step = 1e-3
    curvature = np.array(
        [
            (evaluate(found.x + d)[1] - evaluate(found.x - d)[1]) / (2 * step)
            for d in step * np.eye(2)
        ]
    )
    return found.x, np.sqrt(np.diag(np.linalg.inv(curvature)))


def gradient_error(n, pixels, data):
    """Returns the relative difference of the gradient and finite differences, away from the
    maximum."""
    gradient = np.asarray(loss(START, n, pixels, data)[1])

    def central(step):
        ends = [
            [-float(log_likelihood(START + sign * d, n, pixels, data)) for sign in (1, -1)]
            for d in step * np.eye(2)
        ]
        return np.array([(up - down) / (2 * step) for up, down in ends])

    # Combines two steps, so that the error is of fourth order.
    differences = (4 * central(1e-3) - central(2e-3)) / 3
    return np.linalg.norm(gradient - differences) / np.linalg.norm(gradient)


def draw(path, field, bands, pixels, data, theta, deviations):
    """Writes a picture: the field and its observed pixels, band powers, and the likelihood."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    n, (k, measured, modes) = len(field), bands
    plt.rc("font", size=15)  # for phones
    figure, axes = plt.subplots(2, 2, figsize=(9.2, 8.6), layout="constrained", facecolor="white")
    plane = np.asarray(field[0])
    for axis, side, title in (
        (axes[0, 0], n, "a plane of the field"),
        (axes[0, 1], corner(n), "its corner, pixels seen"),
    ):
        image = axis.imshow(plane.T, cmap="RdBu_r", clim=(-3, 3), origin="lower")
        axis.set(title=title, xlim=(-0.5, side - 0.5), ylim=(-0.5, side - 0.5))
    figure.colorbar(image, ax=axes[0, :], label="field")
    edge = corner(n) - 0.5
    axes[0, 0].plot([-0.5, edge, edge], [edge, edge, -0.5], "k")
    here = pixels[:, 0] == 0
    axes[0, 1].scatter(
        *pixels[here, 1:].T, c=data[here], cmap="RdBu_r", clim=(-3, 3), edgecolor="k", s=60
    )

    axis = axes[1, 0]
    axis.errorbar(k, measured, measured * np.sqrt(2 / modes), fmt=".", label="band powers")
    axis.plot(k, power(TRUTH, k), label="truth", zorder=3)
    axis.plot(k, power(theta, k), "--", label=f"from {len(data)} pixels", zorder=3)
    axis.set(xscale="log", yscale="log", xlabel="k", ylabel="P(k)", title="power spectrum")
    ticks = [tick for tick in (0.01, 0.03, 0.1, 0.3, 1, 3) if tick >= k[0]]
    axis.set_xticks(ticks, map(str, ticks))
    axis.set_xticks([], minor=True)
    axis.grid(alpha=0.3)
    axis.legend()

    axis = axes[1, 1]
    x, y = (t + np.linspace(-4, 4, 25) * d for t, d in zip(theta, deviations, strict=True))
    likelihood = [[float(log_likelihood(np.array([a, s]), n, pixels, data)) for a in x] for s in y]
    below = np.array(likelihood) - np.max(likelihood)
    # The first three contours hold 68, 95 and 99.7 % of a two-dimensional normal distribution.
    filled = axis.contourf(x, y, below, [-40, -20, -10, -5.9, -3.1, -1.15, 0], cmap="Blues")
    figure.colorbar(filled, ax=axis, label="log-likelihood")
    axis.plot(*TRUTH, "*", color="gold", markeredgecolor="k", markersize=16, label="truth")
    axis.errorbar(*theta, *deviations[::-1], fmt="o", color="tab:red", label="fit by gradients")
    axis.set(xlabel=NAMES[0], ylabel=NAMES[1], title="likelihood of the pixels")
    axis.legend()
    figure.savefig(path, dpi=100, bbox_inches="tight")
    print(path)


if __name__ == "__main__":
    app.run(main)
