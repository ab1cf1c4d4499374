"""Scattering of plane waves by sound-soft obstacles: a dense complex matrix for the LU routines.

    ./tools/bazel run //examples:scattering -- --plot /tmp/scattering.png
    python examples/scattering.py --scene kite
    python examples/scattering.py --wavenumber 160 --points 9376      65632 unknowns, for GPUs

A wave exp(i k d.x) meets obstacles on whose boundary the total field is 0. The scattered field is
represented as a combined double- and single-layer potential with a density phi, and

    phi + K phi - i k S phi = -2 exp(i k d.x)       on the boundary

has one solution at every wavenumber k. Its kernels are Hankel functions with a logarithmic
singularity. R. Kress's quadrature integrates it exactly, so that errors fall exponentially with the
number of points (D. Colton and R. Kress, "Inverse Acoustic and Electromagnetic Scattering Theory",
4th ed., 2019, section 3.6). The matrix is dense, complex, and neither Hermitian nor symmetric. Each
device computes its own rows of it.

The far field of seven disks is compared with the series of cylindrical waves that solves the
problem exactly. For a kite beside a disk, and also for the disks, point sources within the
obstacles have a known field outside. One factor serves all directions of incidence; the far fields
must satisfy reciprocity and the conservation of energy.

Runs on the GPUs of JAX's default backend, or else on four CPU devices. The exit code is 1 if any of
these errors is above 1e-10.
"""

import os
import time
from typing import NamedTuple

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from absl import app, flags
from hankel import hankel01
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

jax.config.update("jax_enable_x64", True)

_SCENE = flags.DEFINE_enum("scene", "disks", ["disks", "kite"], "what the wave meets")
_WAVENUMBER = flags.DEFINE_float(
    "wavenumber", 6.0, "2 pi over the wavelength; radii are about 1", lower_bound=0.1
)
_POINTS = flags.DEFINE_integer("points", 128, "on the boundary of an obstacle", lower_bound=32)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")

MESH = Mesh(np.array(jax.devices()), ("rank",))
BY_ROWS = NamedSharding(MESH, P("rank", None))
# x, y and radius of each disk; the other scene has one disk beside the kite.
DISKS = np.array(
    [
        [-3.0, 2.0, 1.0], [0.0, 3.0, 0.8], [3.0, 1.5, 1.1], [-1.2, -0.2, 0.7],
        [1.6, -0.8, 0.9], [-2.8, -2.6, 0.9], [0.4, -3.2, 1.0],
    ]
)  # fmt: skip
KITE, BESIDE = np.array([-1.0, 0.5]), np.array([[1.6, -1.2, 0.7]])
LIMIT = 1e-10


class Boundary(NamedTuple):
    """The points of all obstacles. Each obstacle has the same number, equidistant in its parameter
    t."""

    x: np.ndarray  # (n, 2)
    normal: np.ndarray  # (n, 2), outward, with the length of dx / dt
    bend: np.ndarray  # (n,), the curvature times the length of the normal
    obstacle: np.ndarray  # (n,), index of the point's obstacle

    @property
    def step(self):
        """The distance between the parameters of neighbours."""
        return 2 * np.pi * (self.obstacle[-1] + 1) / len(self.x)


def main(_):
    """Solves with more and more points, then for all directions; returns the exit code."""
    k, points, scene = _WAVENUMBER.value, _POINTS.value, _SCENE.value
    if points % 32:
        raise app.UsageError(f"--points must be a multiple of 32; got {points}")
    boundary, sources = obstacles(scene, points)
    n = len(boundary.x)
    print(f"{scene}, {n} unknowns, wavenumber {k}; {MESH.size} {MESH.devices.flat[0].device_kind}")
    # Enough angles to resolve a far field: the orders of its waves reach slightly above 4.7 k.
    angles = np.linspace(0, 2 * np.pi, 2 * round(5 * k + 30), endpoint=False)
    print("points   error of one wave" if scene == "disks" else "points   error of one source")
    sizes = [points * part // 32 for part in (4, 6, 8, 12, 16, 24, 32)]
    errors = []
    for size in sizes:
        errors.append(one_error(scene, k, size, angles))
        print(f"{size:<9}{errors[-1]:.1e}", flush=True)

    factor, seconds = timed(factorize, k, boundary, *terms(k, boundary))
    print(f"matrix of {16e-9 * n * n:.3f} GB made and factored in {seconds:.2f} s")
    density, seconds = timed(factor.solve, plane_waves(k, boundary, angles))
    print(f"{len(angles)} directions of incidence in {seconds:.2f} s; errors:")
    pattern = far_field(k, boundary, density, angles)  # (directions, directions of incidence)
    found = {"energy": energy_error(k, pattern), "reciprocity": reciprocity_error(pattern)}
    if scene == "disks":
        found["series"] = relative_error(pattern, series(k, DISKS, angles, angles))
    given, exact = point_sources(k, boundary, sources, angles)
    found["sources"] = relative_error(far_field(k, boundary, factor.solve(given), angles), exact)
    for name, error in found.items():
        print(f"  {name:<12}{error:.1e}")

    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        draw(_PLOT.value, k, boundary, density[:, 0], (sizes, errors))
    good = max(found.values()) < LIMIT
    print("all right" if good else "WRONG")
    return 0 if good else 1


def obstacles(scene, points):
    """Returns (the boundary of all obstacles, a point within each)."""
    t = 2 * np.pi / points * np.arange(points)
    disks = DISKS if scene == "disks" else BESIDE
    parts = [
        (centre + radius * unit(t), radius * unit(t + np.pi / 2), -radius * unit(t))
        for *centre, radius in disks
    ]
    sources = disks[:, :2] + 0.1
    if scene == "kite":
        x = [np.cos(t) + 0.65 * np.cos(2 * t) - 0.65, 1.5 * np.sin(t)]
        first = [-np.sin(t) - 1.3 * np.sin(2 * t), 1.5 * np.cos(t)]
        second = [-np.cos(t) - 2.6 * np.cos(2 * t), -1.5 * np.sin(t)]
        parts.append((KITE + np.transpose(x), np.transpose(first), np.transpose(second)))
        sources = np.array([*sources, KITE])
    x, first, second = map(np.concatenate, zip(*parts, strict=True))
    normal = np.stack([first[:, 1], -first[:, 0]], axis=1)
    bend = -np.sum(normal * second, axis=1) / np.sum(normal**2, axis=1)
    return Boundary(x, normal, bend, np.repeat(np.arange(len(parts)), points)), sources


def unit(angle):
    """Returns the vector of length 1 in a direction."""
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def kernels(k, x, y, normal):
    """Returns the kernel of K - i k S, (len(x), len(y)), and the factor of log(|x - y|^2) in it.

    Both are for integration over the parameter of y, and wrong where x = y. The factor of the
    logarithm in Y is J / pi.
    """
    difference = x[:, None] - y
    distance = jnp.sqrt(jnp.sum(difference**2, axis=2))
    distance = jnp.where(distance == 0, 1.0, distance)
    h0, h1 = hankel01(k * distance)
    double = k / 2 * jnp.sum(normal * difference, axis=2) / distance
    single = k / 2 * jnp.sqrt(jnp.sum(normal**2, axis=1))
    return 1j * double * h1 + single * h0, (1j * single * h0.real - double * h1.real) / np.pi


def kress_weights(points):
    """Returns quadrature weights for log(4 sin((t - s) / 2)^2) f(s), indexed by the points from s
    to t."""
    half = points // 2
    # Minus the logarithm is the sum of 2 cos(m (t - s)) / m; the last term has half the weight.
    return -2 * np.pi * np.fft.irfft([0, *1 / np.arange(1.0, half), 1 / half], points)


def terms(k, boundary):
    """Returns the other arguments of `matrix`, vectors that only depend on k and the boundary."""
    points = len(boundary.x) // (boundary.obstacle[-1] + 1)
    weights = kress_weights(points)
    log = np.log(4 * np.sin(np.pi / points * np.arange(1, points)) ** 2)
    beyond = np.append(weights[0], weights[1:] - boundary.step * log)
    # On the diagonal |x - y| is 0; without the singularity both kernels have a limit.
    speed = np.linalg.norm(boundary.normal, axis=1)
    single = 1 / 2 + 1j / np.pi * (np.euler_gamma + np.log(k * speed / 2))
    whole = k * speed * single - boundary.bend / (2 * np.pi)
    diagonal = 1 + boundary.step * whole + 1j * k / (2 * np.pi) * speed * weights[0]
    return beyond, diagonal


@jax.jit
def matrix(k, boundary, beyond, diagonal):
    """Returns the matrix of the integral equation, (n, n). Each device computes its own rows."""
    i, points = jnp.arange(len(boundary.x)), len(beyond)
    kernel, logarithmic = kernels(k, boundary.x, boundary.x, boundary.normal)
    same = boundary.obstacle[:, None] == boundary.obstacle
    beyond = jnp.where(same, beyond[(i[:, None] - i) % points], 0.0)
    a = boundary.step * kernel + beyond * logarithmic
    a = jnp.where(i[:, None] == i, diagonal[:, None], a)
    return jax.lax.with_sharding_constraint(a, BY_ROWS)


@jax.jit
def factorize(k, boundary, beyond, diagonal):
    return jaxmg.lu_factor(matrix(k, boundary, beyond, diagonal), mesh=MESH)


@jax.jit
def solve(k, boundary, beyond, diagonal, b):
    a = matrix(k, boundary, beyond, diagonal)
    return jaxmg.linalg.solve(a, b, assume_a="gen", mesh=MESH)


def plane_waves(k, boundary, angles):
    """Returns right-hand sides, (n, angles), for plane waves in these directions."""
    return -2 * np.exp(1j * k * boundary.x @ unit(angles).T)


def point_sources(k, boundary, sources, angles):
    """Returns (right-hand sides for sources within the obstacles, the sources' far fields
    outside)."""
    distance = np.linalg.norm(boundary.x[:, None] - sources, axis=2)
    phase = np.exp(-1j * k * unit(angles) @ sources.T)
    return 0.5j * scipy.special.hankel1(0, k * distance), point_far_field(k) * phase


def point_far_field(k):
    return np.exp(1j * np.pi / 4) / np.sqrt(8 * np.pi * k)


def far_field(k, boundary, density, angles):
    """Returns the factor of exp(i k r) / sqrt(r) at a large distance, (angles, columns of the
    density)."""
    x, normal = boundary.x, boundary.normal
    towards = normal @ unit(angles).T + np.linalg.norm(normal, axis=1)[:, None]
    layers = -1j * k * towards * np.exp(-1j * k * x @ unit(angles).T)
    return boundary.step * point_far_field(k) * layers.T @ np.asarray(density)


@jax.jit
def near_field(k, boundary, density, x):
    """Returns the scattered field at points off the boundary, (len(x),)."""
    x = jax.lax.with_sharding_constraint(x, BY_ROWS)
    kernel, _ = kernels(k, x, boundary.x, boundary.normal)
    return boundary.step / 2 * kernel @ density


def series(k, disks, directions, angles):
    """Returns the exact far field of disks, (directions, angles), for plane waves in directions
    `angles`.

    Around each disk the field is a sum of H_m(k r) exp(i m theta). Graf's addition theorem
    translates the sums of the other disks to this disk (P. A. Martin, "Multiple Scattering", 2006,
    section 4.5).
    """
    centres, radii = disks[:, :2], disks[:, 2]
    most = int(k * radii.max() + 8 * np.cbrt(k * radii.max()) + 10)
    m = np.arange(-most, most + 1)
    j = scipy.special.jv(m, k * radii[:, None])
    h = scipy.special.hankel1(m, k * radii[:, None])
    a = np.eye(j.size, dtype=complex).reshape(2 * j.shape)
    for p, q in np.argwhere(~np.eye(len(disks), dtype=bool)):
        gap, order = complex(*(centres[p] - centres[q])), m - m[:, None]
        moved = scipy.special.hankel1(order, k * abs(gap)) * np.exp(1j * order * np.angle(gap))
        a[p, :, q] = j[p, :, None] * moved / h[q]
    arriving = np.exp(1j * k * centres @ unit(angles).T)[:, None] * 1j ** m[:, None]
    b = -j[..., None] * arriving * np.exp(-1j * np.outer(m, angles))
    c = np.linalg.solve(a.reshape(j.size, -1), b.reshape(j.size, -1)).reshape(b.shape)
    leaving = np.exp(-1j * k * unit(directions) @ centres.T)[..., None] * (-1j) ** m
    leaving = leaving * np.exp(1j * directions[:, None, None] * m) / h
    return -4j * point_far_field(k) * np.tensordot(leaving, c, axes=((1, 2), (0, 1)))


def one_error(scene, k, points, angles):
    """Returns the relative error of one far field, computed with ``points`` points per obstacle."""
    boundary, sources = obstacles(scene, points)
    if scene == "disks":
        b, exact = plane_waves(k, boundary, angles[:1]), series(k, DISKS, angles, angles[:1])
    else:
        b, exact = point_sources(k, boundary, sources[-1:], angles)
    density = solve(k, boundary, *terms(k, boundary), b)
    return relative_error(far_field(k, boundary, density, angles), exact)


def relative_error(found, exact):
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


def energy_error(k, pattern):
    """Returns |S^H S - 1| / |1|, the violation of energy conservation by the scattering matrix
    S."""
    step = 2 * np.pi / len(pattern)
    s = np.eye(len(pattern)) + step * np.sqrt(k / (2 * np.pi)) * np.exp(1j * np.pi / 4) * pattern
    return relative_error(s.conj().T @ s, np.eye(len(pattern)))


def reciprocity_error(pattern):
    """Returns the violation of reciprocity: reversing a wave's path must not change its
    amplitude."""
    half = len(pattern) // 2
    return relative_error(np.roll(pattern, (half, half), axis=(0, 1)).T, pattern)


def timed(f, *arguments):
    """Returns (the result, the seconds of a call); the first call compiles and isn't timed."""
    jax.block_until_ready(f(*arguments))
    start = time.perf_counter()
    result = jax.block_until_ready(f(*arguments))
    return result, time.perf_counter() - start


def draw(path, k, boundary, density, convergence):
    """Writes a picture: a wave and its total field, its far field, and the decrease of the
    error."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rc("font", size=15)  # for phones
    figure, axes = plt.subplot_mosaic(
        [["field", "field"], ["section", "error"]],
        figsize=(8.2, 10), height_ratios=[9, 5], layout="constrained", facecolor="white",
    )  # fmt: skip
    left, middle, right = axes["field"], axes["section"], axes["error"]
    side, edge = 300, 1.4 * abs(boundary.x).max()
    line = np.linspace(-edge, edge, side)
    x = np.stack(np.meshgrid(line, line), axis=2).reshape(-1, 2)
    field = np.exp(1j * k * x[:, 0]) + near_field(k, boundary, density, x)
    image = left.imshow(
        np.real(field).reshape(side, side), extent=(-edge, edge) * 2, origin="lower",
        cmap="RdBu_r", clim=(-2, 2),
    )  # fmt: skip
    figure.colorbar(image, ax=left)
    for part in np.unique(boundary.obstacle):
        left.fill(*boundary.x[boundary.obstacle == part].T, facecolor="lightgray", edgecolor="k")
    left.set(title="a wave from the left: the total field", xticks=[], yticks=[])

    angles = np.linspace(-np.pi, np.pi, 1000)
    section = 2 * np.pi * abs(far_field(k, boundary, density[:, None], angles)) ** 2
    middle.plot(np.degrees(angles), 10 * np.log10(section))
    middle.set(title="scattering cross-section", xlabel="degrees off the wave", ylabel="dB")
    middle.set(xlim=(-180, 180), xticks=range(-180, 181, 90))
    middle.grid(alpha=0.3)

    right.semilogy(*convergence, marker="o")
    right.set(title="a far field", xlabel="points on each obstacle", ylabel="relative error")
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=100)
    print(path)


if __name__ == "__main__":
    app.run(main)
