"""Measures the errors of potrs in each `precision`, and with plain products, on hard matrices.

    precision_errors.py [--platform gpu] [--ranks 4] [--n 16384 32768] [--dtype float32] ...

The matrices: eigenvalues spread evenly over the logarithm, for several conditions; Gaussian and
Matern kernels of points in the unit square with noise; Wishart matrices; a spike, I + 1e4 v v^T;
positive random entries; rows of very different size. For each there are three errors: the backward
error |b - A x| / (|A|_F |x|) sqrt(n) in units of rounding, and the relative error of x and the
absolute error of log(det(A)), compared with potrs of the same matrix in double precision. Prints a
line and writes a record for each matrix, and at the end the median ratio of each error to that of
plain products. The exit code is 1 if None or "F16_F16_F32_X3" has a median above 2, or fails where
plain products don't.
"""

import functools
import statistics
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

GOOD = (None, "F16_F16_F32_X3")
PRECISIONS = ("highest", *GOOD, "BF16_BF16_F32_X6", "BF16_BF16_F32_X3", "tf32")
CONDITIONS = (1e2, 1e4, 1e5)
NOISES = (1e-1, 1e-2, 1e-3, 5e-4)
ERRORS = ("backward", "x", "logdet")
AS_GOOD = 2.0  # the largest median ratio of an error to that of plain products


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", choices=("float32", "complex64"), default="float32")
    parser.add_argument("--n", nargs="+", type=int, default=(16384, 32768))
    parser.add_argument("--nrhs", type=int, default=4)
    parser.add_argument("--precision", nargs="+", default=[str(p) for p in PRECISIONS])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def kernel(of_distance, n, noise, dtype):
    """Returns a kernel, a function of the distance, of points in the unit square."""
    points = jnp.asarray(np.random.default_rng(1).uniform(size=(n, 2)), jnp.finfo(dtype).dtype)
    square = sum((points[:, None, k] - points[None, :, k]) ** 2 for k in range(2))
    return (of_distance(jnp.sqrt(square)) + noise * jnp.eye(n)).astype(dtype)


def gaussian(distance):
    return jnp.exp(-(distance**2) / (2 * 0.2**2))


def matern(distance):
    """Returns the Matern kernel of smoothness 3/2 and length scale 2."""
    scaled = 3**0.5 * distance / 2
    return (1 + scaled) * jnp.exp(-scaled)


def wishart(n, dtype):
    g = jax.random.normal(jax.random.key(3), (n, n), dtype)
    with jax.default_matmul_precision("highest"):
        return g @ g.conj().T / n + 0.01 * jnp.eye(n, dtype=dtype)


def spike(n, dtype):
    return jnp.eye(n, dtype=dtype) + jnp.full((n, n), 1e4 / n, dtype)


def positive(n, dtype):
    """Returns a matrix with entries between 0 and 1, and a dominant diagonal."""
    upper = jnp.triu(jax.random.uniform(jax.random.key(4), (n, n), jnp.finfo(dtype).dtype))
    return (upper + upper.T + n * jnp.eye(n)).astype(dtype)


def graded(n, dtype):
    """Returns a Wishart matrix with rows and columns scaled by 1 to 1e-3."""
    scales = jnp.logspace(0, -3, n, dtype=jnp.finfo(dtype).dtype)
    return (scales[:, None] * wishart(n, dtype) * scales[None, :]).astype(dtype)


def matrices(args, n):
    """Yields (name, function without arguments that makes the matrix)."""
    for condition in CONDITIONS:
        column = jnp.asarray(problems.even_column(n, condition))
        make = functools.partial(problems.even_matrix, jnp, column, dtype=args.dtype)
        yield f"condition {condition:.0e}", make
    for noise in NOISES:
        for of_distance in (gaussian, matern):
            make = functools.partial(kernel, of_distance, n, noise, args.dtype)
            yield f"{of_distance.__name__} kernel, noise {noise:g}", make
    for kind in (wishart, spike, positive, graded):
        yield kind.__name__, functools.partial(kind, n, args.dtype)


@jax.jit
def backward_error(a, x, b):
    wide = jnp.complex128 if jnp.iscomplexobj(a) else jnp.float64
    a, x, b = (value.astype(wide) for value in (a, x, b))
    size = jnp.linalg.norm(a) * jnp.linalg.norm(x) / a.shape[0] ** 0.5
    return jnp.linalg.norm(b - a @ x) / size / jnp.finfo(jnp.float32).eps


def exact_solution(a, b):
    """Returns x and log(det(A)) of the same matrix in double precision."""
    wide = jnp.complex128 if jnp.iscomplexobj(a) else jnp.float64
    widen = jax.jit(lambda a: a.astype(wide))
    return jaxmg.potrs(widen(a), b.astype(wide), return_logdet=True, donate=True)


def errors_of(a, b, exact, precision):
    """Returns the errors that ERRORS names; None if potrs finds A not positive definite."""
    x, logdet, status = jaxmg.potrs(
        a, b, precision=precision, return_logdet=True, return_status=True
    )
    if status:
        return None
    distance = jnp.linalg.norm(x - exact[0]) / jnp.linalg.norm(exact[0])
    of_logdet = abs(float(logdet) - float(exact[1]))
    return [float(backward_error(a, x, b)), float(distance), of_logdet]


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
    precisions = [None if name == "None" else name for name in args.precision]
    ratios, good = {}, True
    for n in args.n:
        b = problems.vectors(jnp, n, args.nrhs, args.dtype)
        for name, make in matrices(args, n):
            a = jax.jit(make, **({"out_shardings": by_rows} if n % args.ranks == 0 else {}))()
            exact = exact_solution(a, b)
            errors = {str(p): errors_of(a, b, exact, p) for p in precisions}
            plain = errors["highest"]
            for precision, each in errors.items():
                if plain and each:
                    of_plain = [e / max(p, 1e-30) for e, p in zip(each, plain, strict=True)]
                    ratios.setdefault(precision, []).append(of_plain)
                elif plain and precision in map(str, GOOD):
                    good = False
            shown = (
                f"{k} {' '.join(f'{e:.3g}' for e in v) if v else 'fails'}"
                for k, v in errors.items()
            )
            print(f"{args.dtype} n={n} {name}: ", ", ".join(shown), flush=True)
            records.append(args.out, entry(args, n) | {"matrix": name, "errors": errors})
    for precision, each in ratios.items():
        medians = [statistics.median(column) for column in zip(*each, strict=True)]
        if precision in map(str, GOOD):
            good &= max(medians) <= AS_GOOD
        shown = (f"{name} {median:.2f}" for name, median in zip(ERRORS, medians, strict=True))
        print(f"{precision} in parts of highest, medians of {len(each)}: ", ", ".join(shown))
    return 0 if good else 1


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
