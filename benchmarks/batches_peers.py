"""Batches of matrices on one GPU by other libraries: PyTorch and CuPy.

    batches_peers.py [--library torch cupy] [--routine qr inv ...] [--n 64 256 ...]
                     [--dtype float32 ...] [--bytes 5e8] [--limit 230] [--out FILE]

Orders, dtypes, counts and kinds of matrices are those of batches.py, with whose times of JAX and
jaxmg these compare. A library that isn't installed is left out. A call is warmed up, repeated, and
timed until the GPU has finished. A call whose first run takes over a second isn't repeated. Prints
a line for each case and writes a record for each library. The exit code is 1 if a result is wrong.
"""

import argparse
import itertools
import statistics
import sys
import time

import numpy as np
import records

DTYPES = ("float32", "float64", "complex64", "complex128")
SLOW, REPEATS, MOST = 1.0, 5, 4096


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", nargs="+", choices=tuple(LIBRARIES), default=tuple(LIBRARIES))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=("float32",))
    parser.add_argument("--routine", nargs="+", choices=tuple(ROUTINES), default=tuple(ROUTINES))
    parser.add_argument("--n", nargs="+", type=int, default=(64, 256, 1024))
    parser.add_argument("--bytes", type=float, default=2.6e8, help="of a batch")
    parser.add_argument("--most", type=int, default=MOST, help="matrices of a batch")
    parser.add_argument("--limit", type=float, default=600, help="seconds in all")
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args()


class Library:
    """A library whose functions have the names of numpy.linalg."""

    def __init__(self, module):
        self.module = module
        self.versions = {module.__name__: module.__version__}

    def call(self, routine):
        """Returns the library's function of a stack, or None if it has none."""
        linalg, ones = self.module.linalg, lambda a: self.module.ones_like(a[..., :1])
        return {
            "qr": linalg.qr,
            "inv": linalg.inv,
            "solve": lambda a: linalg.solve(a, ones(a)),
            "cholesky": linalg.cholesky,
            "eigh": linalg.eigh,
            "svd": lambda a: linalg.svd(a, full_matrices=False),
        }.get(routine)


class Torch(Library):
    """PyTorch, with its default precision of products (no TF32)."""

    def __init__(self):
        import torch

        super().__init__(torch)
        self.name = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"

    def normal(self, shape, dtype):
        return self.module.randn(*shape, dtype=getattr(self.module, dtype), device="cuda")

    def eye(self, n, dtype):
        return self.module.eye(n, dtype=getattr(self.module, dtype), device="cuda")

    def wait(self):
        self.module.cuda.synchronize()

    def host(self, a):
        return a.cpu().numpy()

    def call(self, routine):
        torch, factor = self.module, self.module.linalg.cholesky
        if routine == "potri":
            return lambda a: torch.cholesky_inverse(factor(a))
        if routine == "potrs":
            return lambda a: torch.cholesky_solve(torch.ones_like(a[..., :1]), factor(a))
        return super().call(routine)


class Cupy(Library):
    """CuPy, with the functions of numpy.linalg."""

    def __init__(self):
        import cupy

        super().__init__(cupy)
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.name = f"{cupy.cuda.runtime.getDeviceCount()} x {properties['name'].decode()}"

    def normal(self, shape, dtype):
        real = np.finfo(dtype).dtype
        a = self.module.random.standard_normal(shape, real)
        if np.dtype(dtype).kind == "c":
            a = (a + 1j * self.module.random.standard_normal(shape, real)) / 2**0.5
        return a.astype(dtype)

    def eye(self, n, dtype):
        return self.module.eye(n, dtype=dtype)

    def wait(self):
        self.module.cuda.Device().synchronize()

    def host(self, a):
        return self.module.asnumpy(a)


LIBRARIES = {"torch": Torch, "cupy": Cupy}


def _adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


# The kind of matrices, and a function of one matrix and its results on the host that returns two
# arrays, which must be equal up to rounding.
ROUTINES = {
    "qr": ("any", lambda a, q, r: (q @ r, a)),
    "inv": ("any", lambda a, x: (a @ x, np.eye(len(a)))),
    "solve": ("any", lambda a, x: (a @ x, np.ones((len(a), 1)))),
    "cholesky": ("definite", lambda a, factor: (factor @ _adjoint(factor), a)),
    "potri": ("definite", lambda a, x: (a @ x, np.eye(len(a)))),
    "potrs": ("definite", lambda a, x: (a @ x, np.ones((len(a), 1)))),
    "eigh": ("hermitian", lambda a, w, v: ((v * w) @ _adjoint(v), a)),
    "svd": ("any", lambda a, u, s, vh: ((u * s) @ vh, a)),
}


def make(library, kind, shape, dtype):
    """Returns random normal matrices; Hermitian ones have eigenvalues in [-2, 2] or [2, 6]."""
    a = library.normal(shape, dtype)
    if kind == "any":
        return a
    a = (a + a.swapaxes(-1, -2).conj()) / (2 * shape[-1]) ** 0.5
    return a + 4 * library.eye(shape[-1], dtype) if kind == "definite" else a


def count_of(args, n, dtype, routine):
    """Returns the number of matrices, the same as in batches.py."""
    count = int(args.bytes / (n * n * np.dtype(dtype).itemsize))
    return max(1, min(count, args.most) // (4 if routine in ("svd", "eigh") else 1))


def measure(args, libraries, n, dtype, routine):
    """Prints and records a case; returns whether all results are right."""
    kind, sides = ROUTINES[routine]
    shape = (count_of(args, n, dtype, routine), n, n)
    line, good = [], True
    for library in libraries:
        call = library.call(routine)
        if call is None:
            continue
        try:
            a = make(library, kind, shape, dtype)
            seconds, runs, results = _time(library, call, a)
            given, *first = (_wide(library.host(one[0])) for one in (a, *results))
        except Exception as failure:
            line.append(f"{_way(library)} {type(failure).__name__} {str(failure)[:60]}")
            continue
        got, wanted = sides(given, *first)
        error = float(np.linalg.norm(got - wanted)) / float(np.linalg.norm(wanted))
        if routine in ("inv", "solve"):  # the error may grow with the condition
            error /= max(1.0, float(np.linalg.cond(given)) / n)
        right = bool(error <= 10 * n * float(np.finfo(dtype).eps))
        good &= right
        line.append(f"{_way(library)} {seconds * 1e3:.2f}" + ("" if right else f" ({error:.0e}!)"))
        origin = records.origin(
            library.name, records.python("benchmarks/batches_peers.py", sys.argv[1:])
        )
        origin["versions"] = origin["versions"] | library.versions
        record = {
            "routine": routine, "way": _way(library), "dtype": dtype, "n": n, "batch": shape[0],
            "seconds": seconds, "runs": runs, "error": error, **origin,
        }  # fmt: skip
        records.append(args.out, record)
    print(f"{routine:9}{dtype:10}{shape[0]:5} x {n:<5} ms  " + "  ".join(line), flush=True)
    return good


def _wide(a):
    return a.astype("complex128" if a.dtype.kind == "c" else "float64")


def _way(library):
    return type(library).__name__.lower()


def _time(library, call, a):
    """Returns (the median of seconds, the seconds of every call, the results)."""
    runs = []
    while len(runs) < REPEATS + 1:
        library.wait()
        start = time.perf_counter()
        results = call(a)
        library.wait()
        runs.append(time.perf_counter() - start)
        if runs[0] > SLOW:
            break
    kept = runs[1:] or runs
    return statistics.median(kept), kept, results if isinstance(results, tuple) else (results,)


def main():
    args = arguments()
    start, libraries, good = time.perf_counter(), [], True
    for name in args.library:
        try:
            libraries.append(LIBRARIES[name]())
        except ImportError as failure:
            print(f"{name} left out: {failure}")
    for case in itertools.product(args.n, args.dtype, args.routine):
        if time.perf_counter() - start > args.limit:
            print("no time for", *case)
            continue
        good &= measure(args, libraries, *case)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
