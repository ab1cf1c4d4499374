"""Times optimizers' computations on all matrices of a model: `jaxmg.tree` on several devices, and
JAX's functions on one.

    trees.py [--platform gpu] [--step muon soap shampoo ...] [--ranks 1 2 4] [--layers 28]
             [--width 2048] [--replicated] [--repeats 5] [--least 3.5] [--out FILE]

The tree is that of a transformer with `--layers` layers of seven matrices, and four more matrices:
by default 200 matrices with 1.02e9 float32 parameters. It is sharded by rows, or replicated on all
devices with `--replicated`.

    muon          orthogonalize: five steps of Newton and Schulz in bfloat16
    soap          orthogonal_iteration of both statistics of each matrix, 400 statistics
    shampoo       inverse_pth_root of both statistics, p = 4, by the coupled Newton iteration
    shampoo_eigh  the same by eigenvectors

`jax` is the same computation by jax.numpy, one matrix after the other on one device, in a compiled
program for each shape. All programs are compiled before. A case that takes over 5 s runs once,
others run `--repeats` times; the result is the median. Prints a line and writes a record for each
case, with the load of the busiest device relative to the average (by the model of costs) and the
error of the worst matrix: for Muon how far the mean square of singular values is outside [0.3^2,
1.3^2], or their mean fourth power above 1.3^4; for SOAP |Q^H Q - 1|; for Shampoo
|X^4 (A + ridge) - 1|. The exit code is 1 if an error is beyond its limit, or if the speed on the
most devices is below `--least` times that of one.
"""

import functools
import statistics
import sys
import time

import devices
import jax
import jax.numpy as jnp
import numpy as np
import records
from absl import app
from absl.flags import argparse_flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._trees import functions, homes, iterations

SLOW = 5.0  # seconds of a run above which it isn't repeated
EPSILON = 1e-4
_product = functools.partial(jnp.matmul, precision="highest")


def arguments(argv):
    parser = argparse_flags.ArgumentParser()
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--step", nargs="+", choices=tuple(STEPS), default=("muon", "soap"))
    parser.add_argument("--ranks", nargs="*", type=int, default=(1,))
    parser.add_argument("--kind", nargs="+", choices=("jaxmg", "jax"), default=("jaxmg", "jax"))
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--replicated", action="store_true", help="leaves, as data-parallel has")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--least", type=float, help="speed of most devices, in that of one")
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def main(args):
    devices.prepare(args.platform, max(args.ranks))
    return 0 if all([measure(args, step) for step in args.step]) else 1


def measure(args, step):
    """Prints and records all cases of a step; returns whether errors and speed are acceptable."""
    cases = [("jax", 1)] if "jax" in args.kind else []
    cases += [("jaxmg", count) for count in args.ranks] if "jaxmg" in args.kind else []
    one, good = {}, True
    for kind, count in cases:
        seconds, runs, about = run(args, step, kind, count)
        speed = one.setdefault(kind, seconds) / seconds
        slow = kind == "jaxmg" and count == max(args.ranks) and speed < (args.least or 0)
        good &= about["error"] <= STEPS[step].limit and not slow
        print(
            f"{step:13}{kind:6}{count:2}{about['matrices']:5} matrices {seconds * 1e3:10.1f} ms"
            f"  {speed:5.2f} x one  busiest {about['balance']:.3f}  error {about['error']:.1e}"
            f"  compiled in {about['compile_seconds']:.0f} s" + ("  SLOW" if slow else ""),
            flush=True,
        )
        record = {
            "kind": "tree", "step": step, "by": kind, "dtype": "float32", "ranks": count,
            "layers": args.layers, "width": args.width, "replicated": args.replicated,
            "seconds": seconds, "runs": runs, "speed": speed, **about,
            **records.origin(
                records.name_of(jax.devices()[:count]),
                records.python("benchmarks/trees.py", sys.argv[1:]),
            ),
        }  # fmt: skip
        records.append(args.out, record)
    return good


def run(args, step, kind, count):
    """Returns (median seconds, seconds of each run, other values for the record) of one case."""
    mesh = Mesh(np.array(jax.devices()[:count]), ("rank",))
    spec = P() if args.replicated else P("rank", None)
    shapes = shapes_of(args.layers, args.width)
    make, ours, theirs, error, cost, _ = STEPS[step]
    sharding = NamedSharding(mesh, spec)
    make_one = jax.jit(make, static_argnums=0, out_shardings=sharding)
    keys = jax.random.split(jax.random.key(0), len(shapes))
    each = [one for key, shape in zip(keys, shapes, strict=True) for one in make_one(shape, key)]
    trees = tuple(map(list, zip(*each, strict=True)))  # of each operand
    start = time.perf_counter()
    if kind == "jaxmg":
        function = functools.partial(ours, mesh=mesh, specs=spec)
        compiled = jax.jit(function, out_shardings=sharding).lower(*trees).compile()
    else:
        one_matrix = jax.jit(theirs)
        for shape in {leaf.shape for leaf in trees[0]}:
            index = next(i for i, leaf in enumerate(trees[0]) if leaf.shape == shape)
            jax.block_until_ready(one_matrix(*(tree[index] for tree in trees)))
        compiled = functools.partial(map_list, one_matrix)
    compile_seconds = time.perf_counter() - start
    # Errors are those of the first run, which also loads libraries.
    one_off = jax.jit(error)
    off = max(map(float, map(one_off, trees[0], compiled(*trees))))
    runs = []
    while len(runs) < args.repeats and not (runs and runs[0] > SLOW):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*trees))
        runs.append(time.perf_counter() - start)
    matrices = [leaf.shape for leaf in trees[0]]
    leaves = tuple(homes.Leaf.make(shape, "float32", spec, mesh) for shape in matrices)
    balance = homes.deal(leaves, tuple(mesh.shape.items()), cost).balance
    about = {
        "matrices": len(matrices), "compile_seconds": compile_seconds, "error": off,
        "balance": balance if kind == "jaxmg" else 1.0,
    }  # fmt: skip
    return statistics.median(runs), runs, about


def shapes_of(layers, width):
    """Returns the shapes of a transformer's matrices: queries, keys, values and output of attention
    with a quarter of the heads for keys and values, a gated layer of twice the width, and four
    more."""
    d, hidden = width, 2 * width
    layer = [(d, d), (d, d // 4), (d, d // 4), (d, d), (d, hidden), (d, hidden), (hidden, d)]
    return layer * layers + [(d, d), (d, d), (d // 2, d), (d // 2, d)]


def momenta(shape, key):
    """Returns the leaves that belong to a matrix of weights, each as a tuple of operands."""
    return ((jax.random.normal(key, shape, jnp.float32),),)


def both_statistics(shape, key):
    """Returns G G^T and G^T G of a random matrix, with a ridge, so that they have full rank as
    moving averages do."""
    g = jax.random.normal(key, shape, jnp.float32)
    pair = _product(g, g.T), _product(g.T, g)
    return tuple((a / len(a) + 0.1 * jnp.eye(len(a), dtype=jnp.float32),) for a in pair)


def statistics_and_bases(shape, key):
    pair = both_statistics(shape, key)
    return tuple((a, jnp.eye(len(a), dtype=jnp.float32)) for (a,) in pair)


def orthogonal(g):
    return iterations.orthogonal(g, iterations.NEWTON_SCHULZ, False, jnp.bfloat16)


def next_basis(a, q):
    q, r = jnp.linalg.qr(_product(a, q))
    return q * jnp.where(jnp.diagonal(r) < 0, -1, 1)


root_by_newton = functools.partial(iterations.root_by_newton, p=4, epsilon=EPSILON)
root_by_eigenvalues = functools.partial(iterations.root_by_eigenvalues, p=4, epsilon=EPSILON)


def muon_error(_, x):
    """Returns how far the mean square of singular values is outside [0.3^2, 1.3^2], or their mean
    fourth power above 1.3^4, by the traces of the Gram matrix and of its square."""
    x = x if len(x) <= len(x.T) else x.T
    gram = _product(x, x.T)
    mean = jnp.trace(gram) / len(gram)
    off = jnp.array([0.0, 0.09 - mean, mean - 1.69, jnp.sum(gram * gram) / len(gram) - 1.3**4])
    return off.max()


def soap_error(_, q):
    return jnp.abs(_product(q.T, q) - jnp.eye(len(q))).max()


def shampoo_error(a, x):
    """Returns |X^4 (A + ridge) - 1|, estimated by a random vector."""
    v = jax.random.normal(jax.random.key(1), (len(a),), jnp.float32)
    largest = jax.lax.fori_loop(
        0, 50, lambda _, w: _product(a, w / jnp.linalg.norm(w)), jnp.ones_like(v)
    )
    y = _product(a, v) + EPSILON * jnp.linalg.norm(largest) * v
    for _ in range(4):
        y = _product(x, y)
    return jnp.linalg.norm(y - v) / jnp.linalg.norm(v)


class Step(tuple):
    """A tuple: the function that makes the leaves of a matrix of weights, jaxmg's function, JAX's,
    the error of a result, the cost of a matrix, and the limit of the error."""

    limit = property(lambda self: self[5])

    @classmethod
    def make(cls, make, ours, theirs, error, limit, cost=homes.operations):
        return cls((make, ours, theirs, error, cost, limit))


def map_list(function, *trees):
    return [function(*leaves) for leaves in zip(*trees, strict=True)]


def _muon(g, mesh, specs):
    return jaxmg.tree.orthogonalize(g, dtype=jnp.bfloat16, mesh=mesh, matrix_specs=specs)


def _soap(a, q, mesh, specs):
    return jaxmg.tree.orthogonal_iteration(a, q, mesh=mesh, matrix_specs=specs)


def _shampoo(a, mesh, specs, method):
    return jaxmg.tree.inverse_pth_root(a, 4, EPSILON, method, mesh=mesh, matrix_specs=specs)


def _cost_of_pair(matrix):
    n = matrix.shape[-1]
    return functions.cost_of_pair(jax.ShapeDtypeStruct((n, 2 * n), matrix.dtype))


STEPS = {
    "muon": Step.make(momenta, _muon, orthogonal, muon_error, 0.0),
    "soap": Step.make(
        statistics_and_bases, _soap, next_basis, soap_error, 1e-3, cost=_cost_of_pair
    ),
    "shampoo": Step.make(
        both_statistics,
        functools.partial(_shampoo, method="newton"),
        root_by_newton,
        shampoo_error,
        1e-2,
    ),
    "shampoo_eigh": Step.make(
        both_statistics,
        functools.partial(_shampoo, method="eigh"),
        root_by_eigenvalues,
        shampoo_error,
        1e-1,
    ),
}


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
