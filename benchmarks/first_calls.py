"""Measures the time of a first call: trace, compilation and the one-time work of libraries.

    first_calls.py [--case qr svd] [--dtype float64] [--orders 100 1000 3000] [--tall] [--gradient]
                   [--devices 4] [--repeats 3] [--label new] [--peers] [--compile]

Each function has its own process, which takes its sizes in turn and clears JAX's caches between
them. A record has the seconds of the first call minus those of the second. With ``--peers`` JAX's
function is measured too, in its own process. With ``--compile`` nothing runs: a record has the
seconds of the processor for trace and compilation, which other work on the machine changes less,
and the number of instructions of the program.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time

import records

FUNCTIONS = (
    "qr", "svd", "svdvals", "lstsq", "pinv", "polar", "solve", "eigh", "expm", "inv", "cholesky",
    "lu", "lu_factor", "det", "sqrtm", "logm", "eigvalsh", "qr pivoting", "cg", "eigsh",
    "pivoted_cholesky", "ldl", "ldl_factor", "batched svd",
    "batched qr", "batched eigh", "orthogonalize", "exact", "roots", "newton roots",
)  # fmt: skip
_OF_TREES = FUNCTIONS[-4:]
_HERMITIAN = ("eigh", "batched eigh", "eigvalsh", "eigsh", "ldl", "ldl_factor")
_DEFINITE = ("cholesky", "sqrtm", "logm", "cg", "pivoted_cholesky")
_SQUARE = ("solve", "expm", "inv", "det", *_HERMITIAN, *_DEFINITE)
_BATCH = (50, 300, 300)
_TREES = (20, 200)


def shapes_of(name, options):
    """Returns the shapes of a function's operands; for trees the numbers of leaves."""
    if name in _OF_TREES:
        return [(count,) for count in _TREES]
    if name.startswith("batched"):
        return [_BATCH]
    square = [(n, n) for n in options.orders]
    rectangular = [(20000, 1000), (1000, 20000)] if options.tall and name not in _SQUARE else []
    return square + rectangular


def function_of(name, peer):
    import jax
    import jax.numpy as jnp

    if peer:
        linalg, scipy = jnp.linalg, jax.scipy.linalg
    else:
        from jaxmg import linalg

        scipy = linalg
    of = {
        "qr": linalg.qr,
        "svd": lambda a: linalg.svd(a, full_matrices=False),
        "svdvals": linalg.svdvals,
        "lstsq": lambda a: linalg.lstsq(a, a[:, 0])[0],
        "pinv": linalg.pinv,
        "polar": lambda a: scipy.polar(a),
        "solve": lambda a: scipy.solve(a, a[:, 0]),
        "eigh": linalg.eigh,
        "expm": scipy.expm,
        "inv": linalg.inv,
        "cholesky": linalg.cholesky,
        "lu": scipy.lu,
        "lu_factor": lambda a: scipy.lu_factor(a)[0],
        "det": linalg.det,
        "sqrtm": scipy.sqrtm,
        "logm": getattr(scipy, "logm", None),  # JAX has none
        "eigvalsh": linalg.eigvalsh,
        "qr pivoting": lambda a: scipy.qr(a, mode="economic", pivoting=True)[:2],
        "cg": lambda a: (
            jax.scipy.sparse.linalg.cg(a, a[:, 0])[0] if peer else linalg.cg(a, a[:, 0]).x
        ),
        "batched svd": lambda a: linalg.svd(a, full_matrices=False),
        "batched qr": linalg.qr,
        "batched eigh": linalg.eigh,
    }
    if not peer:  # JAX has none
        of |= {
            "eigsh": lambda a: linalg.eigsh(a, 4),
            "pivoted_cholesky": lambda a: linalg.pivoted_cholesky(a, 20).L,
            "ldl": linalg.ldl,
            "ldl_factor": lambda a: linalg.ldl_factor(a).solve(a[:, 0]),
        }
    if name in _OF_TREES:
        from jaxmg import tree

        of = {
            "orthogonalize": tree.orthogonalize,
            "exact": lambda a: tree.orthogonalize(a, method="exact"),
            "roots": lambda a: tree.inverse_pth_root(a, 4),
            "newton roots": lambda a: tree.inverse_pth_root(a, 4, method="newton"),
        }
    return of[name]


def operand_of(name, shape, dtype, sharding):
    import jax
    import numpy as np

    random = np.random.default_rng(0)
    if name in _OF_TREES:
        sizes = [(256, 256), (512, 256), (256, 1024), (300, 300)]
        if "roots" in name:
            sizes = [(n, n) for n in (256, 512, 384, 300)]
        leaves = [random.normal(size=sizes[i % len(sizes)]) for i in range(shape[0])]
        if "roots" in name:
            leaves = [x @ x.T / len(x) for x in leaves]
        return [jax.device_put(x.astype(dtype)) for x in leaves]
    a = random.normal(size=shape) / shape[-1] ** 0.5
    if name in _HERMITIAN:
        a = a + np.swapaxes(a, -1, -2)
    if name in _DEFINITE:
        a = a @ a.T + np.eye(len(a))
    return jax.device_put(a.astype(dtype), sharding)


def measure(name, options):
    """Prints a line for each size."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = jax.devices()[: 1 if options.peer else options.devices]
    mesh = Mesh(np.array(devices), ("rank",))
    sharding = NamedSharding(mesh, P("rank"))
    if len(devices) > 1:
        contextlib.ExitStack().enter_context(jax.set_mesh(mesh))
    jax.block_until_ready(jnp.ones(8) @ jnp.ones(8))  # starts JAX and its library of products
    for shape in shapes_of(name, options):
        a = operand_of(name, shape, options.dtype, sharding)
        function = function_of(name, options.peer)
        if options.gradient:
            function = jax.grad(lambda a, f=function: sum(map(_total, jax.tree.leaves(f(a)))))
        firsts, later = [], 0.0
        for _ in range(options.repeats):
            jax.clear_caches()
            call, times = jax.jit(function), []
            if options.compile:
                start = time.process_time()
                text = call.lower(a).compile().as_text()
                firsts.append(time.process_time() - start)
                later = 1e-3 * len(re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))
                continue
            for _ in range(3):
                start = time.perf_counter()
                jax.block_until_ready(call(a))
                times.append(time.perf_counter() - start)
            firsts.append(times[0] - times[1])
            later = times[2]
        print(json.dumps([records.name_of(devices), shape, firsts, 1e3 * later]), flush=True)


def _total(x):
    import jax.numpy as jnp

    return jnp.sum(jnp.abs(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--orders", nargs="*", type=int, default=[100, 1000, 3000])
    parser.add_argument("--tall", action="store_true")
    parser.add_argument("--gradient", action="store_true")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--label", default="")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a function")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return measure(options.child, options)
    command = records.python("benchmarks/first_calls.py", sys.argv[1:])
    wide = options.dtype in ("float64", "complex128")
    environment = os.environ | {
        "JAX_ENABLE_X64": str(int(wide)), "JAX_ENABLE_COMPILATION_CACHE": "0",
    }  # fmt: skip
    if options.devices > 1:
        flags = os.environ.get("XLA_FLAGS", "")
        flag = f"--xla_force_host_platform_device_count={options.devices}"
        environment["XLA_FLAGS"] = f"{flags} {flag}".strip()
    for name in options.case:
        for peer in (False, True) if options.peers and name not in _OF_TREES else (False,):
            arguments = [sys.executable, __file__, *sys.argv[1:], "--child", name]
            try:
                done = subprocess.run(
                    arguments + ["--peer"] * peer,
                    env=environment,
                    text=True,
                    timeout=options.limit,
                    capture_output=True,
                    check=False,
                )
                lines, error = done.stdout.splitlines(), done.stderr[-300:] * (done.returncode != 0)
            except subprocess.TimeoutExpired as late:
                lines, error = (late.stdout or b"").decode().splitlines(), "time limit"
            if error:
                print(f"# {name}{' of JAX' * peer}: {error}", flush=True)
            for line in lines:
                machine, shape, firsts, later = json.loads(line)
                record = records.origin(machine, command) | {
                    "code": "JAX" if peer else options.label or "jaxmg", "devices": options.devices,
                    "routine": name, "gradient": options.gradient, "shape": shape,
                    "dtype": options.dtype,
                }  # fmt: skip
                firsts = [round(first, 2) for first in firsts]
                if options.compile:
                    record |= {"cpu_s": firsts, "instructions": round(later)}
                else:
                    record |= {"first_s": firsts, "later_ms": round(later, 3)}
                print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
