"""Backward errors of potrs in each `precision`, beside plain products, on hard matrices.

    precision_errors.py [--platform gpu] [--ranks 4] [--n 16384 32768] [--dtype float32] ...

Eigenvalues spread evenly over the logarithm, of some conditions, and Gaussian kernels of points in
the unit square with noise. Errors are |b - A x| / (|A|_F |x|) sqrt(n) in units of rounding,
computed in double precision. Prints a line and writes a record a matrix. The exit code is 1 where
the error of what is to be as good as plain products is beyond twice theirs: of six products, of
three of float16 numbers, of what None takes.
"""

import functools
import sys

import devices
import jax
import jax.numpy as jnp
import numpy as np
import problems
import records
from absl import app
from absl.flags import argparse_flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

GOOD = (None, "F16_F16_F32_X3", "BF16_BF16_F32_X6")
PRECISIONS = ("highest", *GOOD, "BF16_BF16_F32_X3", "tf32")
CONDITIONS = (1e2, 1e4, 1e5)
NOISES = (0.3, 1e-2, 1e-3)
AS_GOOD = 2.0  # times the error of plain products


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", choices=("float32", "complex64"), default="float32")
    parser.add_argument("--n", nargs="+", type=int, default=(16384, 32768))
    parser.add_argument("--nrhs", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def kernel(n, noise, dtype):
    """A Gaussian kernel of points in the unit square."""
    points = jnp.asarray(np.random.default_rng(1).uniform(size=(n, 2)), jnp.finfo(dtype).dtype)
    square = sum((points[:, None, k] - points[None, :, k]) ** 2 for k in range(2))
    return (jnp.exp(-square / (2 * 0.2**2)) + noise**2 * jnp.eye(n)).astype(dtype)


def matrices(args, n):
    """(name, function without arguments that makes it) of each."""
    for condition in CONDITIONS:
        column = jnp.asarray(problems.even_column(n, condition))
        make = functools.partial(problems.even_matrix, jnp, column, dtype=args.dtype)
        yield f"condition {condition:.0e}", make
    for noise in NOISES:
        yield f"kernel, noise {noise:g}", functools.partial(kernel, n, noise, args.dtype)


@jax.jit
def error_of(a, x, b):
    wide = jnp.complex128 if jnp.iscomplexobj(a) else jnp.float64
    a, x, b = (value.astype(wide) for value in (a, x, b))
    size = jnp.linalg.norm(a) * jnp.linalg.norm(x) / a.shape[0] ** 0.5
    return jnp.linalg.norm(b - a @ x) / size / jnp.finfo(jnp.float32).eps


def entry(args, n):
    return {
        **records.origin(
            records.name_of(jax.devices()[: args.ranks]),
            records.python("benchmarks/precision_errors.py", sys.argv[1:]),
        ),
        "routine": "potrs", "dtype": args.dtype, "n": n, "ranks": args.ranks,
    }  # fmt: skip


def main(args):
    devices.prepare(args.platform, args.ranks)
    mesh = Mesh(np.array(jax.devices()[: args.ranks]), ("r",))
    by_rows = NamedSharding(mesh, P("r", None))
    good = True
    for n in args.n:
        b = problems.vectors(jnp, n, args.nrhs, args.dtype)
        for name, make in matrices(args, n):
            a, errors = jax.jit(make, out_shardings=by_rows)(), {}
            for precision in PRECISIONS:
                x, status = jaxmg.potrs(a, b, precision=precision, return_status=True)
                errors[str(precision)] = None if status else float(error_of(a, x, b))
            plain = errors["highest"]
            for kept in map(str, GOOD):
                good &= plain is None or (errors[kept] or np.inf) <= AS_GOOD * plain
            shown = (f"{k} {v and round(v, 3)}" for k, v in errors.items())
            print(f"{args.dtype} n={n} {name}: eps ", ", ".join(shown), flush=True)
            records.append(args.out, entry(args, n) | {"matrix": name, "errors": errors})
    return 0 if good else 1


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
