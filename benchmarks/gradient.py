"""Times the log-likelihood of a Gaussian process, its gradient, and their components.

    gradient.py [--platform gpu] [--ranks 4] [--n 32768] [--most 1.25] [--out FILE] ...

The kernel is Gaussian, with noise, of n points in the unit square. The timed program computes the
matrix, in shards, from the points and three hyperparameters. These take turns in one process: the
program's value and gradient; its value; only the matrix; only the backward pass from a derivative
with respect to the matrix to those with respect to the hyperparameters; and `jaxmg.potrs` and
`jaxmg.potri` of the same matrix, donated. Each is warmed up, and its median taken. `ratio` is value
and gradient over potrs and potri; `algebra` is the same without the matrix and the backward pass.
The exit code is 1 if the gradient doesn't match differences of the value, or if the ratio at the
largest n is above `--most`.
"""

import functools
import statistics
import sys
import time

import devices
import jax
import jax.numpy as jnp
import numpy as np
import peaks
import problems
import records
from absl import app
from absl.flags import argparse_flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

# Logarithms of amplitude, length and noise; a direction in which the likelihood varies strongly.
THETA, DIRECTION = np.log([1.5, 0.2, 0.3]), np.array([0.3, -0.2, 0.9])
# By dtype, the step of the differences, and their largest relative distance from the gradient.
CHECKS = {"float32": (3e-2, 2e-2), "float64": (2e-4, 1e-5)}
CASES = ("value and gradient", "value", "kernel", "way back", "potrs", "potri")


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", choices=CHECKS, default="float64")
    parser.add_argument("--n", nargs="+", type=int, default=(8192, 16384, 32768))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=float, help="the ratio, at the largest n")
    parser.add_argument("--out", help="file to append records to")
    args = parser.parse_args(argv[1:])
    devices.check_orders(parser, args)
    return args


def main(args):
    devices.prepare(args.platform, args.ranks)
    lines, good = [], True
    for n in args.n:
        record = measure(Process(n, args), args)
        records.append(args.out, record)
        wrong = not record["difference"] <= CHECKS[args.dtype][1]
        slow = args.most is not None and n == max(args.n) and record["ratio"] > args.most
        good &= not (wrong or slow)
        lines.append(line(record) + "  WRONG" * wrong + "  SLOW" * slow)
        print(lines[-1], flush=True)
    print(f"\n{args.dtype}, {args.ranks} rank(s), ms; the gradient beside differences of the value")
    titles = "".join(f"{name:>20}" if len(name) > 10 else f"{name:>10}" for name in CASES)
    print(f"{'n':>7}{titles}   ratio algebra  difference    memory", *lines, sep="\n")
    return 0 if good else 1


class Process:
    """Gaussian process of n points on a mesh.

    Attributes:
        cases: {name: (function that makes the operands, timed function)}.
    """

    def __init__(self, n, args):
        self.n, self.platform = n, args.platform
        self.mesh = Mesh(np.array(jax.devices()[: args.ranks]), ("r",))
        self.by_rows, everywhere = (NamedSharding(self.mesh, P(*s)) for s in (("r", None), ()))
        self.theta, self.x, y = jax.device_put(
            (THETA.astype(args.dtype), *data(n, args.dtype)), everywhere
        )
        covariance = jax.jit(self.covariance)
        back = jax.jit(lambda theta, bar: jax.vjp(self.covariance, theta)[1](bar))
        self.value = jax.jit(self.loss)
        self.value_and_grad = jax.jit(jax.value_and_grad(self.loss))
        self.y = y

        def by_theta():
            return (self.theta,)

        def by_matrix():
            return (covariance(self.theta),)

        potrs = functools.partial(jaxmg.potrs, b=y, return_logdet=True, donate=True)
        functions = {
            "value and gradient": (by_theta, lambda theta: self.value_and_grad(theta, y)),
            "value": (by_theta, lambda theta: self.value(theta, y)),
            "kernel": (by_theta, covariance),
            "way back": (lambda: (self.theta, *by_matrix()), back),
            "potrs": (by_matrix, potrs),
            "potri": (by_matrix, functools.partial(jaxmg.potri, donate=True)),
        }
        self.cases = {name: functions[name] for name in CASES}

    def covariance(self, theta):
        """Returns the (n, n) matrix; every device computes its own rows."""
        amplitude, length, noise = jnp.exp(theta)
        squares = sum((self.x[:, None, i] - self.x[:, i]) ** 2 for i in range(self.x.shape[1]))
        a = amplitude**2 * jnp.exp(-squares / (2 * length**2))
        a = a + noise**2 * jnp.eye(self.n, dtype=a.dtype)
        return jax.lax.with_sharding_constraint(a, self.by_rows)

    def loss(self, theta, y):
        """Returns the negative log marginal likelihood."""
        # The derivative recomputes the matrix, so that no intermediate results stay in memory.
        a = jax.checkpoint(self.covariance)(theta)
        x, logdet = jaxmg.potrs(a, y, mesh=self.mesh, return_logdet=True)
        return (y @ x + logdet + self.n * np.log(2 * np.pi)) / 2

    def run(self, name):
        """Returns the seconds of one run."""
        make, call = self.cases[name]
        operands = jax.block_until_ready(make())
        start = time.perf_counter()
        jax.block_until_ready(call(*operands))
        return time.perf_counter() - start

    def warm_up(self, name):
        """Compiles a case; returns the bytes that the call needs on a GPU, including the operands,
        or None if unknown."""
        if self.platform == "cpu":
            self.run(name)
            return None
        needed = 5 * self.n**2 * self.theta.dtype.itemsize // self.mesh.size
        with peaks.peaks(list(self.mesh.devices.flat), needed) as found:
            self.run(name)
        return max(found) if None not in found else None

    def difference(self):
        """Returns the relative distance of the derivative along DIRECTION from a difference of
        values."""
        step, _ = CHECKS[str(self.theta.dtype)]
        _, gradient = self.value_and_grad(self.theta, self.y)
        derivative = float(np.asarray(gradient, np.float64) @ DIRECTION)
        move = (step * DIRECTION).astype(self.theta.dtype)
        ahead, behind = (
            float(self.value(theta, self.y)) for theta in (self.theta + move, self.theta - move)
        )
        return abs((ahead - behind) / (2 * step) - derivative) / abs(derivative)


def data(n, dtype):
    """Returns points, (n, 2), and measurements at them, (n,): waves and noise."""
    x = (problems.vectors(np, n, 2, "float64", seed=11) + 1) / 2
    noise = problems.vectors(np, n, 1, "float64", seed=13)[:, 0]
    y = np.sin(8 * x[:, 0]) * np.cos(5 * x[:, 1]) + 0.5 * noise
    return x.astype(dtype), y.astype(dtype)


def measure(process, args):
    """Returns a record."""
    peak = {name: process.warm_up(name) for name in CASES}
    runs = {name: [] for name in CASES}
    for _ in range(args.repeats):
        for name, times in runs.items():
            times.append(process.run(name))
    seconds = {name: statistics.median(times) for name, times in runs.items()}
    parts, whole = seconds["potrs"] + seconds["potri"], seconds["value and gradient"]
    return {
        **records.origin(
            records.name_of(jax.devices()[: args.ranks]),
            records.python("benchmarks/gradient.py", sys.argv[1:]),
        ),
        "routine": "log_likelihood", "backend": "native", "dtype": args.dtype, "n": process.n,
        "ranks": args.ranks, "seconds": seconds, "runs": runs, "ratio": whole / parts,
        "algebra": (whole - seconds["kernel"] - seconds["way back"]) / parts,
        "difference": process.difference(), "peak_bytes": peak,
    }  # fmt: skip


def line(record):
    """Returns a row of the table."""
    said = f"{record['n']:7}"
    for name, seconds in record["seconds"].items():
        said += f"{seconds * 1e3:{20 if len(name) > 10 else 10}.2f}"
    peak = record["peak_bytes"]["value and gradient"]
    memory = "?" if peak is None else f"{peak / 1e9:.2f} GB"
    said += f"{record['ratio']:8.2f}{record['algebra']:8.2f}"
    return f"{said}{record['difference']:12.1e}{memory:>10}"


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
