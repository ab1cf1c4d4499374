"""Times later calls with two builds of jaxmg, which take turns in one run.

    two_builds.py OLD NEW [--labels old new] [--turns 4] [--calls 5] [--median]
                  [--case svd:50x300x300:float64 exact:20:float32 ...]

A case is a function of matrices, of batches or of trees. For a tree the number of leaves is given,
as in `first_calls.py`. `grad qr:1000x1000:float64` is a gradient.

OLD and NEW are folders with an installed build. A process for each build compiles all cases. Then
they take turns, with several calls each, of which the fastest counts. The result is that of the
fastest turn, with --median the median of all turns, and there is a call before each. The first call
of a case is timed after the process has compiled the cases before it, while the other process
compiles too.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

import first_calls
import records

CASES = (
    "svd:50x300x300:float32", "svd:50x300x300:float64", "svd:50x300x300:complex128",
    "svd:64x200x200:float32", "svd:64x200x200:float64", "svd:300x200x200:float32",
    "svd:64x512x512:float32", "svd:40x500x260:float64", "svd:8x1000x1000:float64",
    "eigh:64x256x256:float32", "eigh:64x256x256:float64", "eigh:50x300x300:float64",
    "eigh:64x512x512:float32", "eigh:64x512x512:float64", "eigh:300x300x300:float32",
    "eigh:200x400x400:float64", "eigh:64x1000x1000:float32", "eigh:64x1000x1000:float64",
    "eigh:4x2000x2000:float64", "orthogonalize:200:float32", "bfloat16:200:float32",
    "exact:20:float32", "roots:20:float32", "roots:200:float32", "newton roots:20:float32",
)  # fmt: skip
_DEFINITE = ("cholesky", "cho_solve", "solve of definite", "sqrtm")


def _function(name, mesh):
    """Returns the function of this name, of one operand."""
    import jax
    import jax.numpy as jnp

    import jaxmg
    from jaxmg import linalg, tree

    if name.startswith("grad "):
        value = _function(name.removeprefix("grad "), mesh)

        def loss(a):
            return sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(value(a)))

        return jax.grad(loss)
    of = {
        "svd": lambda a: linalg.svd(a, full_matrices=False, mesh=mesh),
        "eigh": lambda a: linalg.eigh(a, mesh=mesh),
        "bfloat16": lambda a: tree.orthogonalize(a, dtype=jnp.bfloat16),
        "cho_solve": lambda a: linalg.cho_solve((a, False), a[:, 0]),
        "cond 1": lambda a: linalg.cond(a, 1),
        "cond fro": lambda a: linalg.cond(a, "fro"),
        "least_squares": lambda a: linalg.least_squares(a, a[:, 0]),
        "matrix_power": lambda a: linalg.matrix_power(a, 3),
        "null_space": lambda a: linalg.null_space(a, rank=a.shape[1] // 2),
        "orth": lambda a: linalg.orth(a, rank=a.shape[1] // 2),
        "solve of definite": lambda a: linalg.solve(a, a[:, 0], assume_a="pos"),
        "solve_triangular": lambda a: linalg.solve_triangular(a, a[:, 0]),
        "potrs": lambda a: jaxmg.potrs(a, a[:, :1]),
        "gesv": lambda a: jaxmg.gesv(a, a[:, :1]),
        "syevd": jaxmg.syevd,
        "svd_lowrank": lambda a: linalg.svd_lowrank(a, 8),
    }
    of |= {name: getattr(linalg, name) for name in _PLAIN}
    return of[name] if name in of else first_calls.function_of(name, False)


_PLAIN = ("cond", "det", "lu", "matrix_rank", "norm", "slogdet", "sqrtm")


def parse(case):
    """Returns (routine, shape, dtype) from a case's name."""
    routine, shape, dtype = case.split(":")
    return routine, tuple(map(int, shape.split("x"))), dtype


def operand_of(routine, shape, dtype):
    import jax.numpy as jnp
    import numpy as np

    if len(shape) == 1:
        name = "orthogonalize" if routine == "bfloat16" else routine
        return first_calls.operand_of(name, shape, dtype, None)
    random = np.random.default_rng(0)
    a = random.standard_normal(shape)
    if dtype.startswith("complex"):
        a = a + 1j * random.standard_normal(shape)
    if routine == "potrs":  # as large as no product of NumPy's should be
        a = (a + a.conj().T) / 2 / shape[-1] ** 0.5 + 4 * np.eye(shape[-1])
    elif routine.removeprefix("grad ") in _DEFINITE:
        a = a @ a.conj().swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1])
    a = jnp.asarray(a.astype(dtype))
    symmetric = routine.endswith(("eigh", "syevd"))
    return a + jnp.swapaxes(a, -1, -2).conj() if symmetric else a


def serve(cases):
    """Compiles the cases; then times what each line of the input has: the index of a case, the
    number of timed calls and that of calls before them."""
    import jax

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((1,), ("rank",), devices=jax.devices()[:1])
    contextlib.ExitStack().enter_context(jax.set_mesh(mesh))

    def seconds(function, a):
        start = time.perf_counter()
        jax.block_until_ready(function(a))
        return time.perf_counter() - start

    calls = []
    for routine, shape, dtype in map(parse, cases):
        call = jax.jit(_function(routine, mesh)), operand_of(routine, shape, dtype)
        calls.append((*call, seconds(*call)))
        seconds(*call)
    print("ready", records.name_of(jax.devices()[:1]), flush=True)
    for line in sys.stdin:
        number, count, before = map(int, line.split())
        *call, first = calls[number]
        times = [seconds(*call) for _ in range(before + count)]
        print(json.dumps([first, min(times[before:])]), flush=True)


def main(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs=2)
    parser.add_argument("--labels", nargs=2, default=["old", "new"])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--median", action="store_true")
    parser.add_argument("--case", nargs="+", default=list(CASES))
    options = parser.parse_args(words)
    command = records.python("benchmarks/two_builds.py", sys.argv[1:] if words is None else words)
    program = [sys.executable, __file__, "--serve", *options.case]
    processes = []
    for folder in options.folders:
        path = os.pathsep.join([folder, os.path.dirname(os.path.abspath(__file__))])
        processes.append(
            subprocess.Popen(
                program, env=os.environ | {"PYTHONPATH": path}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
        )  # fmt: skip
    machine = [process.stdout.readline().split(maxsplit=1)[1].strip() for process in processes][0]
    machine = None if machine == "None" else machine
    for number, case in enumerate(options.case):
        first, times = [0.0, 0.0], [[], []]
        for turn in range(options.turns):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                words = number, options.calls, int(options.median)
                print(*words, file=processes[which].stdin, flush=True)
                first[which], now = json.loads(processes[which].stdout.readline())
                times[which].append(now)
        routine, shape, dtype = parse(case)
        kind, of = ("median", statistics.median) if options.median else ("least", min)
        record = records.origin(machine, command) | {
            "labels": options.labels, "routine": routine, "shape": shape, "dtype": dtype,
            "first_s": [round(x, 2) for x in first],
            f"{kind}_ms": [round(1e3 * of(x), 3) for x in times],
        }  # fmt: skip
        print(json.dumps(record), flush=True)
    for process in processes:
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    else:
        main()
