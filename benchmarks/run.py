"""Measures potrs, potri and syevd: every backend, dtype, size and number of ranks in one way.

    python benchmarks/run.py --routine potrs --n 4096 8192 --ranks 1 2 --backend native scipy \
        --compare --donate

Lists make every combination. Each measurement goes from a matrix in the memory of the devices,
sharded by rows, to the result there; the median of several runs after a warm-up is appended to
benchmarks/results/ as one line of JSON. README.md beside this file says what is in it.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys

import numpy as np
import problems

HERE = pathlib.Path(__file__).resolve().parent
JAXMG_BACKENDS = ("auto", "native", "cusolvermg")
PACKAGES = (
    "jaxmg", "jaxmg-plugin-cpu", "jaxmg-plugin-cuda12", "jaxmg-plugin-cuda13",
    "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy", "scipy",
)  # fmt: skip
# Of a case, what makes two cases the same problem.
PROBLEM = ("routine", "dtype", "n", "nrhs", "vectors", "donate")


def main():
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
    args = arguments()
    cases = list(combinations(args))
    groups = [[case] for case in cases]
    if args.compare:
        same = {}
        for case in cases:
            same.setdefault(tuple(case[key] for key in PROBLEM), []).append(case)
        groups = list(same.values())
    if args.shared and args.platform != "gpu":
        sys.exit("--shared is for GPUs; on CPU the cases differ in threads")
    failures = 0
    with Worker(cases[0], args) if args.shared else contextlib.nullcontext() as shared:
        for group in groups:
            records = measure(group, args, shared)
            failures += len(group) - len(records)
            save(records, args)
            if args.compare:
                print_ratios(records)
    return 1 if failures else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--routine", nargs="+", default=["potrs"], choices=problems.ROUTINES)
    add("--backend", nargs="+", default=["auto"], choices=[*JAXMG_BACKENDS, "jax", "scipy"])
    add("--dtype", nargs="+", default=["float64"], choices=problems.DTYPES)
    add("--n", nargs="+", type=int, default=[4096])
    add("--nrhs", nargs="+", type=int, default=[1], help="right-hand sides, for potrs")
    add("--T_A", nargs="+", type=int, default=[0], help="tile widths; 0: jaxmg's choice")
    add("--ranks", nargs="+", type=int, default=[1])
    add("--threads", nargs="+", type=int, default=[1], help="of BLAS, for each rank on CPU devices")
    add("--platform", default="cpu", choices=["cpu", "gpu"])
    add("--donate", action="store_true", help="the matrix may be overwritten")
    add("--no-vectors", action="store_true", help="eigenvalues alone, for syevd")
    add("--compare", action="store_true", help="alternate between the cases of one problem")
    add("--shared", action="store_true", help="one process for all cases, on GPUs: far quicker")
    add("--warmup", type=int, default=1)
    add("--repeats", type=int, default=5)
    add("--out", help="file to append to, or - for none; default: results/PLATFORM.jsonl")
    return parser.parse_args()


def combinations(args):
    """The cases: what a worker needs to know of one measurement. No case comes twice."""
    seen = []
    problem = (args.routine, args.dtype, args.n, args.nrhs)
    means = (args.backend, args.ranks, args.threads, args.T_A)
    for routine, dtype, n, nrhs, backend, ranks, threads, tile in itertools.product(
        *problem, *means
    ):
        case = {
            "routine": routine,
            "backend": backend,
            "dtype": dtype,
            "n": n,
            "nrhs": nrhs if routine == "potrs" else None,
            "T_A": tile or None,
            "ranks": ranks,
            "threads": threads,
            "vectors": routine == "syevd" and not args.no_vectors,
            "donate": args.donate,
        }
        if backend in ("jax", "scipy"):  # not distributed: as many threads as all ranks together
            case.update(T_A=None, ranks=1, threads=ranks * threads)
        elif n % ranks:
            sys.exit(f"n = {n} is no multiple of {ranks} ranks, so JAX can't shard the matrix")
        if args.platform == "gpu" and backend != "scipy":
            case["threads"] = None
        if case not in seen:
            seen.append(case)
            yield case


class Worker:
    """A process of worker.py, with the environment that `case` needs."""

    def __init__(self, case, args):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        environment["JAX_ENABLE_X64"] = "1"
        environment["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda"}[args.platform]
        flags = environment.get("XLA_FLAGS", "")
        flags += f" --xla_force_host_platform_device_count={case['ranks']}"
        environment["XLA_FLAGS"] = flags.strip()
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[name] = str(case["threads"] or os.cpu_count())
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, action, case):
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"do": action, "case": case}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            return {"error": f"the worker ended with code {self.process.wait()}"}
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def measure(group, args, shared):
    """The records of the cases of a group, of which run after run is timed in turn."""
    checked = []
    for case in group:
        if shared:
            facts = shared.ask("first", case)
        else:
            # In a process of its own: the peak of a GPU's memory can't be reset.
            with Worker(case, args) as worker:
                facts = worker.ask("peak", case)
                if "error" not in facts:
                    facts |= worker.ask("check", case)
        if "error" in facts:
            print(f"{label(case)}: {facts['error']}", file=sys.stderr, flush=True)
        else:
            checked.append((case, facts))
    runs = [[] for _ in checked]
    with contextlib.ExitStack() as stack:
        started = {}
        workers = [shared or worker_for(case, args, stack, started) for case, _ in checked]
        for turn in range(args.warmup + args.repeats):
            for (case, _), worker, done in zip(checked, workers, runs, strict=True):
                reply = worker.ask("time", case)
                if "error" in reply:
                    sys.exit(f"{label(case)}: {reply['error']}")
                if turn >= args.warmup:
                    done.append(reply)
    records = [record(case, facts, done) for (case, facts), done in zip(checked, runs, strict=True)]
    for entry in records:
        print(
            f"{label(entry)}: {entry['seconds']:.4f} s (spread {entry['spread']:.4f}), "
            f"{entry['tflops']:.4f} TFLOP/s"
            + (f", {entry['peak_bytes'] / 2**20:.1f} MiB" if entry["peak_bytes"] else "")
            + (f" = {entry['peak_panels']:.2f} panels a rank" if "peak_panels" in entry else "")
            + f", error {entry['backward_error']:.1e}",
            flush=True,
        )
    return records


def worker_for(case, args, stack, started):
    """On GPUs the cases share a process, and with it the memory; on CPU they differ in threads."""
    key = case["threads"] and json.dumps(case)
    if key not in started:
        started[key] = stack.enter_context(Worker(case, args))
    return started[key]


def record(case, facts, runs):
    """One line of results; the keys up to backward_error are the same for every measurement."""
    seconds = [run["seconds"] for run in runs]
    median = statistics.median(seconds)
    count = problems.operations(
        case["routine"], case["dtype"], case["n"], case["nrhs"] or 0, case["vectors"]
    )
    entry = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": facts["machine"] or host(),
        "versions": versions(),
        "command": command(),
        **{key: case[key] for key in ("routine", "backend", "dtype", "n", "nrhs", "T_A", "ranks")},
        "processes": 1,
        "seconds": median,
        "spread": max(seconds) - min(seconds),
        "tflops": count / median / 1e12,
        "peak_bytes": facts["peak_bytes"],
        "backward_error": facts["backward_error"],
        "donate": case["donate"],
        "threads": case["threads"],
        "runs": seconds,
    }
    if case["routine"] == "syevd":
        entry["vectors"] = case["vectors"]
    if case["T_A"] and facts["peak_bytes"]:
        panels = facts["peak_bytes"] / (case["n"] * case["T_A"] * np.dtype(case["dtype"]).itemsize)
        # On CPU devices the bytes are those of all ranks together.
        entry["peak_panels"] = panels / (case["ranks"] if case["threads"] else 1)
    if "factor_seconds" in runs[0]:
        entry["factor_seconds"] = statistics.median(run["factor_seconds"] for run in runs)
    return entry


def save(records, args):
    if args.out == "-":
        return
    root = pathlib.Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", HERE.parent))
    path = pathlib.Path(args.out or root / "benchmarks/results" / f"{args.platform}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as f:
        f.writelines(json.dumps(entry) + "\n" for entry in records)


def print_ratios(records):
    """The speed of each measurement of jaxmg over that of the others on as many threads."""
    for ours, theirs in itertools.product(records, records):
        if ours["backend"] not in JAXMG_BACKENDS or theirs["backend"] in JAXMG_BACKENDS:
            continue
        if ours["threads"] and ours["ranks"] * ours["threads"] != theirs["threads"]:
            continue
        text = f"{theirs['seconds'] / ours['seconds']:.3f}"
        if "factor_seconds" in theirs:
            text += f" ({theirs['factor_seconds'] / ours['seconds']:.3f} of cho_factor alone)"
        print(f"  {label(ours)}: {text} times the speed of {label(theirs)}", flush=True)


def label(case):
    parts = [case["routine"], case["dtype"], f"n={case['n']}"]
    parts += [f"{key}={case[key]}" for key in ("nrhs", "T_A") if case[key]]
    parts += [case["backend"], f"{case['ranks']} rank(s)"]
    if case["threads"]:
        parts.append(f"{case['threads']} thread(s)")
    return " ".join(parts)


def host():
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as f:
        name = next((line.split(": ")[1].strip() for line in f if "model name" in line), name)
    return f"{name}, {os.cpu_count()} cores"


def command():
    """How to make this record again, less where it goes to."""
    words = list(sys.argv[1:])
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return shlex.join(["python", "benchmarks/run.py", *words])


def versions():
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
