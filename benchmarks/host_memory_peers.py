"""Times a Gaussian log-likelihood and its gradient by other libraries, beside host_memory.py.

    host_memory_peers.py [--n 100000] [--memory 72e9] [--scipy 20000] [--libraries jax cupy torch]
                         [--out FILE]

SciPy computes both on all cores of the host with n = --scipy; the time is also scaled to --n by
n^3. JAX, CuPy and torch, each in a process of its own, may take --memory bytes of the first device
and get the dense matrix of order --n: the records say with which error they end, or how long they
took. Libraries that aren't installed are left out. Where there is no GPU, JAX runs on the host:
pass a small --n.

The kernel is size exp(-|x - x'|^2 / (2 length^2)) + noise (x = x'), of n random points in the unit
cube.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import records
from absl import app
from absl.flags import argparse_flags

PARAMETERS = (1.3, 0.1, 0.1)  # size, length, noise


def arguments(argv):
    parser = argparse_flags.ArgumentParser()
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--memory", type=float, default=72e9)
    parser.add_argument("--scipy", type=int, default=20_000, help="0: leave it out")
    parser.add_argument("--libraries", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--alone", choices=PEERS, help="run this library in this process")
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def problem(n, dtype):
    """Returns (points (n, 3), parameters, y)."""
    random = np.random.default_rng(0)
    points = random.uniform(size=(n, 3)).astype(dtype)
    return points, np.array(PARAMETERS, dtype), random.standard_normal(n).astype(dtype)


def kernel(x, y, same, p, exp=np.exp):
    """Returns the covariance of values at points x and y; ``same`` says where the points are."""
    size, length, noise = p
    squares = sum((x[:, None, i] - y[:, i]) ** 2 for i in range(3))
    return size * exp(-squares / (2 * length**2)) + noise * same


def tile(rows, columns, points, p):
    """A function for `jaxmg.Tiles`."""
    import jax.numpy as jnp

    same = (rows[:, None] == columns).astype(points.dtype)
    return kernel(points[rows], points[columns], same, p, jnp.exp)


def by_scipy(n):
    """Returns the log-likelihood, its gradient by the parameters, and the seconds."""
    from scipy.linalg import cho_factor, cho_solve, lapack

    points, p, y = problem(n, np.float64)
    (size, length, noise), started = p, time.perf_counter()
    a = kernel(points, points, np.eye(n), p)
    factor = cho_factor(a, lower=True)
    x = cho_solve(factor, y)
    value = -(y @ x) / 2 - np.log(factor[0].diagonal()).sum() - n * np.log(2 * np.pi) / 2
    inverse = lapack.dpotri(factor[0], lower=1, overwrite_c=1)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    np.subtract(np.multiply.outer(x, x), inverse, out=inverse)  # the derivative by a, twice
    of_noise = np.trace(inverse) / 2
    smooth = np.subtract(a, noise * np.eye(n), out=a)
    weights = np.multiply(inverse, smooth, out=inverse)
    of_size = weights.sum() / size / 2
    squares = sum((points[:, None, i] - points[:, i]) ** 2 for i in range(3))
    of_length = np.vdot(weights, squares) / length**3 / 2
    return value, (of_size, of_length, of_noise), time.perf_counter() - started


def by_jax(n, memory):
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    points, p, y = problem(n, np.float64)
    index = jnp.arange(n)

    def likelihood(p):
        a = tile(index, index, points, p)
        factor = jnp.linalg.cholesky(a)
        white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        log_det = 2 * jnp.log(jnp.diagonal(factor)).sum()
        return -(white @ white + log_det + n * np.log(2 * np.pi)) / 2

    return float(jax.block_until_ready(jax.jit(jax.value_and_grad(likelihood))(p))[0])


def by_cupy(n, memory):  # the value alone: CuPy has no derivatives
    import cupy

    cupy.get_default_memory_pool().set_limit(size=int(memory))
    points, p, y = problem(n, np.float64)
    points, y = cupy.asarray(points), cupy.asarray(y)
    a = kernel(points, points, cupy.eye(n), p, cupy.exp)
    factor = cupy.linalg.cholesky(a)
    white = cupy.linalg.solve(factor, y)
    log_det = 2 * cupy.log(cupy.diagonal(factor)).sum()
    return float(-(white @ white + log_det + n * np.log(2 * np.pi)) / 2)


def by_torch(n, memory):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(memory / total, 1.0))
    points, p, y = (torch.tensor(one, device=device) for one in problem(n, np.float64))
    p.requires_grad_()
    a = kernel(points, points, torch.eye(n, device=device, dtype=points.dtype), p, torch.exp)
    factor = torch.linalg.cholesky(a)
    white = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
    log_det = 2 * torch.log(torch.diagonal(factor)).sum()
    value = -((white**2).sum() + log_det + n * np.log(2 * np.pi)) / 2
    value.backward()
    return float(value)


PEERS = {"jax": by_jax, "cupy": by_cupy, "torch": by_torch}


def alone(name, args):
    """Runs a library, and prints its time or its error."""
    started = time.perf_counter()
    try:
        value = PEERS[name](args.n, args.memory)
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        print(f"raised {type(error).__name__}: {words}")
    else:
        print(f"{time.perf_counter() - started:.2f} s, log-likelihood {value:.8g}")


def main(args):
    if args.alone:
        return alone(args.alone, args)
    command = records.python("benchmarks/host_memory_peers.py", sys.argv[1:])
    record = functools.partial(dict, **records.origin(None, command))
    if args.scipy:
        value, of_p, seconds = by_scipy(args.scipy)
        scaled = seconds * (args.n / args.scipy) ** 3
        print(f"scipy n={args.scipy}: {seconds:.2f} s; {scaled:.0f} s for n={args.n}", flush=True)
        found = {"value": value, "gradient": of_p, "seconds": seconds, "scaled": scaled}
        records.append(args.out, record(library="scipy", n=args.scipy, **found))
    for name in args.libraries:
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed")
            continue
        said = in_a_process(name, args)
        print(f"{name} n={args.n}: {said}", flush=True)
        records.append(args.out, record(library=name, n=args.n, memory=args.memory, said=said))
    return 0


def in_a_process(name, args):
    """Returns what a library printed; JAX gets its part of the memory by a variable."""
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    found = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=False,
    ) if shutil.which("nvidia-smi") else None  # fmt: skip
    if found is not None and found.returncode == 0:
        total = float(found.stdout.split()[0]) * 2**20
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{min(args.memory / total, 0.95):.3f}"
    words = ["--alone", name, "--n", str(args.n), "--memory", str(args.memory)]
    done = subprocess.run(
        [sys.executable, __file__, *words], env=environment, capture_output=True, text=True
    )
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    return lines[-1] if lines else f"ended with {done.returncode}"


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
