"""SOAP: Adam in the eigenbases of Shampoo's preconditioners, 64 of which are diagonalized at once.

    ./tools/bazel run //examples:soap -- --plot /tmp/soap.png
    python examples/soap.py --n 48 --steps 120

Each gradient G of a weight matrix has two statistics, the moving averages of G G^T and G^T G. Adam
works in the bases of their eigenvectors (N. Vyas et al., "SOAP: Improving and Stabilizing Shampoo
using Adam", 2024). 32 layers make a batch of 64 eigenproblems, and each device of the mesh solves
its share: `jaxmg.eigh` of an array (64, n, n).

The network learns to reproduce scikit-learn's images of digits through a bottleneck of 12 numbers.
SOAP is compared with Adam, and the eigenvectors with jnp.linalg.eigh on one device. Runs on the
GPUs of JAX's default backend, or else on four CPU devices. The exit code is 1 if anything is wrong.
"""

import functools
import os
import time
from typing import NamedTuple

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import jaxmg

_N = flags.DEFINE_integer(
    "n", 64, "pixels of an image, and so the order of all matrices", lower_bound=13, upper_bound=64
)
_STEPS = flags.DEFINE_integer("steps", 60, "of each optimizer", lower_bound=10)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")

MESH = Mesh(np.array(jax.devices()), ("rank",))
EVERYWHERE = NamedSharding(MESH, P())
BY_IMAGES = NamedSharding(MESH, P("rank", None))
LAYERS, BOTTLENECK, IMAGES = 32, 12, 128  # each step has IMAGES images
# The rates of 0.003, 0.01, 0.03 and 0.1 with the lowest losses after 60 steps.
ADAM_RATE, SOAP_RATE = 0.01, 0.01


def main(_):
    """Trains with both optimizers, checks the eigenproblems, and returns the exit code."""
    n, steps = _N.value, _STEPS.value
    known, others = digits(n)
    print(f"{2 * LAYERS} statistics of order {n}; {MESH.size} {MESH.devices.flat[0].device_kind}")
    _, _, adam_losses = train(optax.adam(ADAM_RATE), n, known, others, steps)
    spread = functools.partial(jaxmg.eigh, mesh=MESH)
    _, (state, _), soap_losses = train(soap(SOAP_RATE, spread), n, known, others, steps)

    print("step         Adam      SOAP    (mean squared error, other images)")
    for i in range(9, steps, 10):
        print(f"  {i + 1:<6}{adam_losses[i]:10.4f}{soap_losses[i]:10.4f}")
    sooner = int(np.argmax(np.array(soap_losses) <= adam_losses[-1])) + 1
    good = soap_losses[-1] < adam_losses[-1]
    if good:
        print(f"SOAP has after {sooner} steps what Adam has after {steps}")
    good &= compare(state.statistics)
    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        draw(_PLOT.value, {"Adam": adam_losses, "SOAP": soap_losses})
    print("all right" if good else "WRONG")
    return 0 if good else 1


class SoapState(NamedTuple):
    """The state for k matrices of order n: ``statistics`` and ``bases`` are (2 k, n, n), the
    moments like w."""

    count: jax.Array
    mean: jax.Array
    squares: jax.Array
    statistics: jax.Array
    bases: jax.Array


def soap(rate, eigh, b1=0.9, b2=0.95, every=5):
    """Returns SOAP for parameters (k, n, n) as an optax transformation.

    `eigh` returns eigenvalues and eigenvectors of (2 k, n, n). One of every `every` steps calls it.
    """

    def init(w):
        zeros = jnp.zeros_like(w)
        both = jnp.concatenate([zeros, zeros])
        return SoapState(jnp.zeros((), jnp.int32), zeros, zeros, both, both)

    def update(g, state, w=None):
        del w
        count, mean, squares, statistics, bases = state
        g_transposed = jnp.swapaxes(g, 1, 2)
        both = jnp.concatenate([g @ g_transposed, g_transposed @ g])
        statistics = b2 * statistics + (1 - b2) * both
        bases = jax.lax.cond(
            count % every == 0,
            # eigh's result is sharded over the matrices; here each device multiplies all of them.
            lambda: jax.lax.with_sharding_constraint(eigh(statistics)[1], EVERYWHERE),
            lambda: bases,
        )
        left, right = jnp.split(bases, 2)
        mean = b1 * mean + (1 - b1) * g
        squares = b2 * squares + (1 - b2) * rotate(g, left, right) ** 2
        count += 1
        direction = rotate(mean, left, right) / (1 - b1**count)
        direction /= jnp.sqrt(squares / (1 - b2**count)) + 1e-8
        direction = left @ direction @ jnp.swapaxes(right, 1, 2)
        return direction, SoapState(count, mean, squares, statistics, bases)

    return optax.chain(
        optax.GradientTransformation(init, update), optax.scale_by_learning_rate(rate)
    )


def rotate(g, left, right):
    """Rotates each matrix of g into its two bases."""
    return jnp.swapaxes(left, 1, 2) @ g @ right


def digits(n, dtype=jnp.float32):
    """Returns (1437 images, the other 360) as rows of the n pixels that vary most, minus their
    means."""
    images = load_digits().data
    images = images[:, np.argsort(-images.std(axis=0))[:n]]
    images = np.random.default_rng(0).permutation((images - images.mean(axis=0)) / images.std())
    return jnp.asarray(images[:1437], dtype), jnp.asarray(images[1437:], dtype)


def loss(w, images):
    """Returns the mean squared error of images after the layers w, (LAYERS, n, n)."""

    def layer(h, w):
        return h + jnp.tanh(h @ w) / 2, None

    first, last = jnp.split(w, 2)
    h, _ = jax.lax.scan(layer, images, first)
    h = jnp.where(jnp.arange(h.shape[1]) < BOTTLENECK, h, 0)
    h, _ = jax.lax.scan(layer, h, last)
    return jnp.mean((h - images) ** 2)


def train(optimizer, n, known, others, steps):
    """Returns (weights, the optimizer's state, the loss of the other images after every step)."""
    random = np.random.default_rng(0)
    w = jnp.asarray(random.standard_normal((LAYERS, n, n)) / np.sqrt(n), known.dtype)
    state = optimizer.init(w)

    @jax.jit
    def step(w, state, chosen):
        images = jax.lax.with_sharding_constraint(known[chosen], BY_IMAGES)
        updates, state = optimizer.update(jax.grad(loss)(w, images), state, w)
        w = jax.lax.with_sharding_constraint(optax.apply_updates(w, updates), EVERYWHERE)
        return w, state, loss(w, others)

    w, state = jax.device_put((w, state), EVERYWHERE)
    losses = []
    for _ in range(steps):
        chosen = random.choice(len(known), IMAGES, replace=False)
        w, state, value = jax.block_until_ready(step(w, state, chosen))
        losses.append(float(value))
    return w, state, losses


def compare(a):
    """Returns whether the mesh's eigenvalues and eigenvectors of the batch are accurate; prints
    times."""
    one = jax.device_put(a, jax.devices()[0])
    spread = jax.jit(functools.partial(jaxmg.eigh, mesh=MESH))
    (w, v), seconds = fastest(spread, a)
    (reference, _), alone = fastest(jax.jit(jnp.linalg.eigh), one)
    print(f"{len(a)} eigenproblems: {seconds * 1e3:.1f} ms on {MESH.size} devices by jaxmg,")
    quicker = f"the {MESH.size} devices are" if seconds < alone else "one device is"
    ratio = max(alone / seconds, seconds / alone)
    print(f"  {alone * 1e3:.1f} ms on one by jnp.linalg.eigh: {quicker} {ratio:.2f} times as fast")
    worst = max(errors(one, *jax.device_put((w, v), jax.devices()[0]), reference).values())
    limit = 10 * a.shape[-1] * float(jnp.finfo(a.dtype).eps)
    print(f"  relative errors up to {worst:.1e} (limit {limit:.1e})")
    return worst <= limit


def fastest(f, a, times=5):
    """Returns (the result, the seconds of the fastest call); the first call compiles and isn't
    timed."""
    results, seconds = jax.block_until_ready(f(a)), []
    for _ in range(times):
        start = time.perf_counter()
        results = jax.block_until_ready(f(a))
        seconds.append(time.perf_counter() - start)
    return results, min(seconds)


def errors(a, w, v, reference):
    """Returns the batch's largest errors of the eigenvalues, of a v = v w, and of v^T v = 1."""
    norm = functools.partial(jnp.linalg.norm, axis=(1, 2))
    with jax.default_matmul_precision("highest"):
        residual = norm(a @ v - v * w[:, None, :]) / norm(a)
        deviation = jnp.swapaxes(v, 1, 2) @ v - jnp.eye(a.shape[-1], dtype=a.dtype)
    off = jnp.abs(w - reference).max(axis=1) / jnp.abs(reference).max(axis=1)
    values = {"eigenvalues": off, "residual": residual, "orthogonality": norm(deviation)}
    return {name: float(value.max()) for name, value in values.items()}


def draw(path, losses):
    """Writes a picture of the losses over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rc("font", size=13)  # for phones
    figure, axis = plt.subplots(figsize=(6, 4.2), layout="constrained", facecolor="white")
    for name, values in losses.items():
        axis.semilogy(range(1, len(values) + 1), values, label=name)
    axis.set(xlabel="step", ylabel="mean squared error, other images")
    axis.legend()
    axis.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=100)
    print(path)


if __name__ == "__main__":
    app.run(main)
