"""Muon: trains a small transformer and orthogonalizes its weight matrices at once, each on one
device.

    ./tools/bazel run //examples:muon -- --plot /tmp/muon.png
    python examples/muon.py --width 128 --steps 200

Muon (K. Jordan et al., 2024) replaces the momentum of each weight matrix by its approximate
orthogonal factor. In data-parallel training every device holds all of the weights, and with optax
each device orthogonalizes all matrices. `jaxmg.optax.scale_by_muon` assigns each matrix to one
device, so that the devices share the work.

The transformer learns to continue the text of Python's own reference, byte by byte. Its losses are
compared with those of optax's Muon, which takes the same steps, and of Adam. Runs on the GPUs of
JAX's default backend, or else on four CPU devices. The exit code is 1 if the two Muons differ.
"""

import os
import time
from pydoc_data.topics import topics

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from absl import app, flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg.optax

_WIDTH = flags.DEFINE_integer("width", 64, "of the transformer, a multiple of 4", lower_bound=8)
_STEPS = flags.DEFINE_integer("steps", 60, "of each optimizer", lower_bound=10)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")

MESH = Mesh(np.array(jax.devices()), ("rank",))
EVERYWHERE = NamedSharding(MESH, P())
BY_TEXTS = NamedSharding(MESH, P("rank", None))
LAYERS, HEADS, LENGTH, TEXTS = 4, 4, 48, 32  # each step has TEXTS texts of LENGTH bytes
MUON_RATE, ADAM_RATE, BETA = 0.02, 0.003, 0.95
# The losses of two float32 runs of 60 steps stay this close, although they round differently.
CLOSE = 2e-2


def main(_):
    """Trains with all three optimizers, compares them, and returns the exit code."""
    width, steps = _WIDTH.value, _STEPS.value
    texts = reference_text()
    count = sum(leaf[..., 0, 0].size for leaf in jax.tree.leaves(initial(width)["layers"]))
    kind = MESH.devices.flat[0].device_kind
    print(f"{count} matrices for Muon, width {width}; {MESH.size} {kind}")
    optimizers = {
        "Adam": optax.adam(ADAM_RATE),
        "optax's Muon": muon_of_optax(),
        "Muon": muon(),
    }
    losses, seconds = {}, {}
    for name, optimizer in optimizers.items():
        _, losses[name], seconds[name] = train(optimizer, width, texts, steps)
        print(f"  {name}: {seconds[name] * 1e3:.1f} ms a step")
    print("step  " + "".join(f"{name:>14}" for name in losses) + "    (bits a byte, other text)")
    for i in range(9, steps, 10):
        print(f"  {i + 1:<4}" + "".join(f"{values[i]:14.3f}" for values in losses.values()))
    compare_updates(optimizers, width)
    off = np.max(np.abs(np.subtract(losses["Muon"], losses["optax's Muon"])))
    good = bool(off <= CLOSE)  # NaN isn't
    print(f"the losses of the two Muons differ by up to {off:.1e} (limit {CLOSE:.0e})")
    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        draw(_PLOT.value, losses)
    print("all right" if good else "WRONG")
    return 0 if good else 1


def scaled(w):
    """Scales an update of matrices (..., m, n), so that wide matrices move as much as others."""
    return max(1, w.shape[-1] / w.shape[-2]) ** 0.5 * w


def muon(**options):
    """Returns Muon for the layers, and Adam with Nesterov momentum for the embedding and the
    output. The options are those of `jaxmg.optax.scale_by_muon`."""
    options = {"beta": BETA, "mesh": MESH, "in_specs": P(), **options}
    return optax.partition(
        {
            "muon": optax.chain(
                jaxmg.optax.scale_by_muon(**options),
                optax.stateless_with_tree_map(lambda update, _: scaled(update)),
                optax.scale_by_learning_rate(MUON_RATE),
            ),
            "adam": optax.nadam(ADAM_RATE),  # as in optax's Muon
        },
        lambda w: {name: "muon" if name == "layers" else "adam" for name in w},
    )


def muon_of_optax():
    """Returns the same optimizer from optax, which needs the leading dimension of each leaf."""

    def dimensions(w):
        batch = optax.contrib.MuonDimensionNumbers(1, 2)
        layers = jax.tree.map(lambda _: batch, w["layers"])
        return {**dict.fromkeys(w), "layers": layers}

    return optax.contrib.muon(
        MUON_RATE,
        beta=BETA,
        adam_learning_rate=ADAM_RATE,
        muon_weight_dimension_numbers=dimensions,
    )


def reference_text():
    """Returns (the bytes to learn, the other bytes) of the text of Python's `help` on its
    topics."""
    text = np.frombuffer("\n".join(topics[key] for key in sorted(topics)).encode(), np.uint8)
    return np.split(text, [len(text) * 9 // 10])


def initial(width):
    """Returns the initial weights. Each kind has one leaf (LAYERS, m, n) for all layers."""
    random = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(random.standard_normal(shape) / shape[-2] ** 0.5, jnp.float32)

    square = {name: normal(LAYERS, width, width) for name in ("query", "key", "value", "out")}
    wide = {
        "up": normal(LAYERS, width, 4 * width),
        "down": normal(LAYERS, 4 * width, width),
    }
    return {
        "embedding": normal(256, width) * 16,
        "positions": normal(LENGTH, width),
        "layers": {**square, **wide},
        "output": normal(width, 256),
    }


def loss(w, texts):
    """Returns bits per byte: how well each byte of texts (TEXTS, LENGTH + 1) follows from those
    before it."""
    before, after = texts[:, :-1], texts[:, 1:]
    nats = optax.softmax_cross_entropy_with_integer_labels(scores_of_next(w, before), after)
    return nats.mean() / np.log(2)


def scores_of_next(w, before):
    """Evaluates the transformer: returns scores (TEXTS, LENGTH, 256) for the byte after each
    byte."""
    x = w["embedding"][before] + w["positions"]
    causal = jnp.tri(LENGTH, dtype=bool)

    def layer(x, w):
        h = normalized(x)
        query, key, value = (
            (h @ w[name]).reshape(*h.shape[:2], HEADS, -1) for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bihd,bjhd->bhij", query, key) / query.shape[-1] ** 0.5
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
        x += jnp.einsum("bhij,bjhd->bihd", weights, value).reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(normalized(x) @ w["up"]) @ w["down"], None

    x, _ = jax.lax.scan(layer, x, w["layers"])
    return normalized(x) @ w["output"]


def normalized(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def train(optimizer, width, texts, steps):
    """Returns (weights, the loss on other text after every step, the seconds of the fastest
    step)."""
    random = np.random.default_rng(0)
    w = initial(width)
    others = jax.device_put(windows(random, texts[1], 4 * TEXTS), BY_TEXTS)

    @jax.jit
    def step(w, state, chosen):
        updates, state = optimizer.update(jax.grad(loss)(w, chosen), state, w)
        w = jax.lax.with_sharding_constraint(optax.apply_updates(w, updates), EVERYWHERE)
        return w, state, loss(w, others)

    w, state = jax.device_put((w, optimizer.init(w)), EVERYWHERE)
    losses, seconds = [], []
    for _ in range(steps):
        chosen = jax.device_put(windows(random, texts[0], TEXTS), BY_TEXTS)
        start = time.perf_counter()
        w, state, value = jax.block_until_ready(step(w, state, chosen))
        seconds.append(time.perf_counter() - start)
        losses.append(float(value))
    return w, losses, min(seconds)


def windows(random, text, count):
    """Returns pieces of a text from random places, (count, LENGTH + 1)."""
    starts = random.integers(len(text) - LENGTH, size=count)
    return text[starts[:, None] + np.arange(LENGTH + 1)].astype(np.int32)


def compare_updates(optimizers, width):
    """Prints the time of an update with optax's Muon and with this one."""
    w = jax.device_put(initial(width), EVERYWHERE)
    seconds = {}
    for name in ("Muon", "optax's Muon"):
        state = jax.device_put(optimizers[name].init(w), EVERYWHERE)
        seconds[name] = fastest(jax.jit(optimizers[name].update), w, state, w)
    ours, theirs = seconds.values()
    ratio, how = max(ours, theirs) / min(ours, theirs), "fast" if ours <= theirs else "slow"
    print(f"the update alone: {ours * 1e3:.2f} ms with each matrix on one device;")
    print(f"  {theirs * 1e3:.2f} ms where every device takes all, as in optax's:")
    print(f"  jaxmg's is {ratio:.2f} times as {how}")


def fastest(f, *arguments, times=9):
    """Returns the seconds of the fastest call of a function; the first call compiles it and isn't
    timed."""
    jax.block_until_ready(f(*arguments))
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(f(*arguments))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def draw(path, losses):
    """Writes a picture of the losses over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rc("font", size=13)  # for phones
    figure, axis = plt.subplots(figsize=(6, 4.2), layout="constrained", facecolor="white")
    for (name, values), style in zip(losses.items(), ("-", "-", "--"), strict=True):
        axis.plot(range(1, len(values) + 1), values, style, label=name)
    axis.set(xlabel="step", ylabel="bits a byte, other text")
    axis.legend()
    axis.grid(alpha=0.3)
    figure.savefig(path, dpi=100)
    print(path)


if __name__ == "__main__":
    app.run(main)
