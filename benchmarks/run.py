"""Measures each routine in one way for every backend, dtype, size and number of ranks.

    python benchmarks/run.py --routine potrs --n 4096 8192 --ranks 1 2 --backend native scipy \
        --compare --donate

Lists stand for all combinations. `+` begins further combinations; the options before the first `+`
apply to all. Each measurement begins with a matrix in the devices' memory, sharded by rows, or for
cho_solve with its factor, and ends when the result is there. The median of several runs after a
warm-up is appended to benchmarks/results/ as one line of JSON; README.md in this folder describes
it.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys

import numpy as np
import problems
import records
from absl import app
from absl.flags import argparse_flags

HERE = pathlib.Path(__file__).resolve().parent
JAXMG_BACKENDS = ("auto", "native", "cusolvermg")
# The keys of a case at the beginning of every record.
CASE = ("routine", "backend", "dtype", "matrix", "precision", "n", "nrhs", "T_A", "ranks")
# The keys of a case that define its problem.
PROBLEM = ("routine", "dtype", "matrix", "n", "nrhs", "vectors", "donate")


def batches_of(argv):
    return [arguments(words) for words in split(argv[1:])]


def main(batches):
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
    everything = [(args, list(combinations(args))) for args in batches]
    devices = max(case["ranks"] for _, cases in everything for case in cases)
    first, cases = everything[0]
    failures = 0
    with Worker(cases[0], first, devices) if first.shared else contextlib.nullcontext() as shared:
        for args, cases in everything:
            for group in groups_of(cases, args):
                entries = measure(group, args, shared)
                failures += len(group) - len(entries)
                save(entries, args)
                if args.compare:
                    print_ratios(entries)
    return 1 if failures else 0


def split(words):
    """Returns the command lines of all batches; words before the first `+` belong to each."""
    common, *batches = [
        list(batch) for plus, batch in itertools.groupby(words, lambda w: w == "+") if not plus
    ] or [[]]
    return [common + batch for batch in batches] or [common]


def groups_of(cases, args):
    """Returns groups of cases that take turns."""
    if not args.compare:
        return [[case] for case in cases]
    same = {}
    for case in cases:
        same.setdefault(tuple(case[key] for key in PROBLEM), []).append(case)
    return list(same.values())


def arguments(words):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    known = (*problems.ROUTINES, *problems.FACTORIZATIONS, *problems.ON_FACTORS)
    add("--routine", nargs="+", default=["potrs"], choices=known)
    add("--backend", nargs="+", default=["auto"], choices=[*JAXMG_BACKENDS, "jax", "scipy"])
    add("--dtype", nargs="+", default=["float64"], choices=problems.DTYPES)
    add(
        "--precision",
        nargs="+",
        default=["default"],
        choices=[
            "default",
            "highest",
            "tf32",
            "BF16_BF16_F32_X3",
            "BF16_BF16_F32_X6",
            "F16_F16_F32_X3",
        ],
        help=("of products, in single precision"),
    )
    add(
        "--matrix",
        nargs="+",
        choices=problems.KINDS,
        help="default: uniform for general routines, dominant for others",
    )
    add("--n", nargs="+", type=int, default=[4096])
    add("--nrhs", nargs="+", type=int, default=[1], help="of solves")
    add("--T_A", nargs="+", type=int, default=[0], help="tile widths; 0: jaxmg's choice")
    add("--ranks", nargs="+", type=int, default=[1])
    add("--threads", nargs="+", type=int, default=[1], help="of BLAS, for each rank on CPU devices")
    add(
        "--eigensolver",
        nargs="+",
        default=["auto"],
        choices=["auto", "one", "all"],
        help="whose work syevd is on CPU devices: one rank's, by LAPACK, or all ranks'",
    )
    add("--platform", default="cpu", choices=["cpu", "gpu"])
    add("--donate", action="store_true", help="the matrix may be overwritten")
    add("--no-vectors", action="store_true", help="eigenvalues alone, for syevd")
    add("--compare", action="store_true", help="alternate between the cases of one problem")
    add("--shared", action="store_true", help="one process for all cases, far quicker on GPUs")
    add(
        "--gemm",
        action=argparse.BooleanOptionalAction,
        help=("also measure the rate of large products; default on GPUs"),
    )
    add("--repeat-check", action="store_true", help="whether two runs give the same bits")
    add("--trace", type=pathlib.Path, help="folder for a timeline of one more run of each case")
    add("--warmup", type=int, default=1)
    add("--repeats", type=int, default=5, help="0, with --shared: the first run alone is timed")
    add("--limit", type=float, help="seconds after which a run is given up, and its process ended")
    add("--out", help="file to append to, or - for none; default: results/PLATFORM.jsonl")
    args = parser.parse_args(words, argparse.Namespace(words=words))
    if args.gemm is None:
        args.gemm = args.platform == "gpu"
    if args.shared and args.platform == "cpu" and len(args.threads) > 1:
        parser.error("--shared on CPU devices needs one number of threads for all cases")
    if not args.repeats and not args.shared:
        parser.error("--repeats 0 needs --shared")
    return args


def combinations(args):
    """Yields the cases, a worker's parameters of one measurement each, without repetitions."""
    seen = []
    problem = (args.routine, args.dtype, args.matrix or [None], args.n, args.nrhs)
    means = (args.precision, args.backend, args.ranks, args.threads, args.T_A, args.eigensolver)
    for (
        routine, dtype, matrix, n, nrhs, precision, backend, ranks, threads, tile, eigensolver
    ) in itertools.product(*problem, *means):  # fmt: skip
        case = {
            "routine": routine,
            "backend": backend,
            "dtype": dtype,
            "matrix": matrix or problems.usual_kind(routine),
            "precision": None if precision == "default" else precision,
            "n": n,
            "nrhs": nrhs if routine in problems.SOLVES else None,
            "T_A": tile or None,
            "ranks": ranks,
            "threads": threads,
            "vectors": routine == "syevd" and not args.no_vectors,
            "eigensolver": eigensolver if routine == "syevd" else "auto",
            "donate": args.donate,
        }
        if backend in ("jax", "scipy"):  # not distributed: one rank with the threads of all ranks
            case.update(T_A=None, ranks=1, threads=ranks * threads, eigensolver="auto")
        elif n % ranks:
            sys.exit(f"n = {n} is no multiple of {ranks} ranks, so JAX can't shard the matrix")
        if routine == "syevd" or backend not in ("auto", "native"):
            case["precision"] = None
        if args.platform == "gpu" and backend != "scipy":
            case["threads"] = None
        if case not in seen:
            seen.append(case)
            yield case


class Worker:
    """A process of worker.py, with the environment that `case` needs. A dead process is restarted
    by the next request; `starts` counts the starts."""

    def __init__(self, case, args, devices=None):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        environment["JAX_ENABLE_X64"] = "1"
        environment["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda"}[args.platform]
        flags = environment.get("XLA_FLAGS", "")
        flags += f" --xla_force_host_platform_device_count={devices or case['ranks']}"
        environment["XLA_FLAGS"] = flags.strip()
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[name] = str(case["threads"] or os.cpu_count())
        self.environment, self.limit, self.starts = environment, args.limit, 0
        self.start()

    def start(self):
        self.starts += 1
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def revive(self):
        if self.process.poll() is not None:
            self.close()
            self.start()

    def ask(self, action, case, **arguments):
        self.revive()
        request = json.dumps({"do": action, "case": case, "arguments": arguments})
        with contextlib.suppress(BrokenPipeError):
            print(request, file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], self.limit)[0]:
            self.process.kill()
            self.process.wait()
            return {"error": f"no answer for {self.limit:g} s"}
        line = self.process.stdout.readline()
        if not line:
            return {"error": f"the worker ended with code {self.process.wait()}"}
        return json.loads(line)

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Job:
    """A case that has been checked, and the process for its measurements."""

    def __init__(self, case, facts, worker):
        self.case, self.facts, self.worker = case, facts, worker
        self.starts, self.runs, self.extra = worker.starts, [], {}

    def ask(self, action, **arguments):
        """Returns the reply; prints an error and returns None if there was one."""
        self.worker.revive()
        if self.worker.starts != self.starts:  # another case killed it: warm up again
            self.starts = self.worker.starts
            self.worker.ask("check", self.case)
        reply = self.worker.ask(action, self.case, **arguments)
        return complain(self.case, reply) if "error" in reply else reply


def measure(group, args, shared):
    """Returns the records of a group's cases, whose runs are timed in turns. A case that fails is
    printed and left out."""
    checked = [(case, facts) for case in group if (facts := check(case, args, shared))]
    with contextlib.ExitStack() as stack:
        started = {}
        jobs = [
            Job(case, facts, shared or worker_for(case, args, stack, started))
            for case, facts in checked
        ]
        if not args.repeats:
            for job in jobs:
                job.runs, job.extra = [job.facts], {"cold": True}
        for turn in range(args.warmup + args.repeats if args.repeats else 0):
            for job in list(jobs):
                reply = job.ask("time")
                if reply is None:
                    jobs.remove(job)
                elif turn >= args.warmup:
                    job.runs.append(reply)
        for job in jobs:
            for wanted, action in ((args.repeat_check, "repeat"), (args.gemm, "gemm")):
                if wanted:
                    job.extra |= job.ask(action) or {}
            if args.trace and job.case["backend"] in JAXMG_BACKENDS:
                job.extra |= trace(job, args.trace) or {}
    entries = [record(job, args) for job in jobs]
    for entry in entries:
        print(summary(entry), flush=True)
    return entries


def trace(job, folder):
    """Returns the seconds of one more run, and of the ranges in the timeline of its first rank."""
    from jaxmg import timeline  # imports JAX, which nothing else here needs

    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join(str(value) for value in job.case.values() if value)
    file = (folder / f"{name}.json").resolve()
    reply = job.ask("trace", file=str(file))
    return reply and reply | {"ranges": timeline.totals(timeline.calls(file)[-1])[0]}


def check(case, args, shared):
    """Returns peak, error and, in a shared process, the time of a first run; None if it failed."""
    if shared:
        facts = shared.ask("first", case)
    else:
        # In its own process, because the peak of a GPU's memory can't be reset.
        with Worker(case, args) as worker:
            facts = worker.ask("peak", case)
            if "error" not in facts:
                facts |= worker.ask("check", case)
    if "error" not in facts:
        return facts
    return complain(case, facts)


def complain(case, reply):
    print(f"{label(case)}: {reply['error']}", file=sys.stderr, flush=True)


def worker_for(case, args, stack, started):
    """Returns the case's process. On GPUs all cases share one, and its memory. On CPUs each case
    has its own, because the numbers of threads differ."""
    key = case["threads"] and json.dumps(case)
    if key not in started:
        started[key] = stack.enter_context(Worker(case, args))
    return started[key]


def record(job, args):
    """Returns one line of results; all measurements have the keys up to backward_error."""
    case, facts, runs, extra = job.case, job.facts, job.runs, job.extra
    seconds = [run["seconds"] for run in runs]
    median = statistics.median(seconds)
    count = problems.operations(
        case["routine"], case["dtype"], case["n"], case["nrhs"] or 0, case["vectors"]
    )
    entry = {
        **records.origin(
            facts["machine"], records.python("benchmarks/run.py", command(args.words))
        ),
        **{key: case[key] for key in CASE},
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
        entry |= {key: case[key] for key in ("vectors", "eigensolver")}
    if case["routine"] in problems.ON_FACTORS:  # forward and backward substitution
        entry["factor_gbps"] = 2 * problems.factor_bytes(case["dtype"], case["n"]) / median / 1e9
    if case["T_A"] and facts["peak_bytes"]:
        panels = facts["peak_bytes"] / (case["n"] * case["T_A"] * np.dtype(case["dtype"]).itemsize)
        # On CPU devices the bytes are the sum over all ranks.
        entry["peak_panels"] = panels / (case["ranks"] if case["threads"] else 1)
    if extra.get("gemm_tflops"):
        entry["gemm_tflops"] = extra["gemm_tflops"]
        entry["gemm_fraction"] = entry["tflops"] / extra["gemm_tflops"]
    measured = ("same_bits", "cold", "traced_seconds", "ranges")
    entry |= {key: extra[key] for key in measured if key in extra}
    for key in runs[0].keys() - facts.keys() - {"seconds"}:  # further values from the solver
        entry[key] = statistics.median(run[key] for run in runs)
    return entry


def summary(entry):
    parts = [f"{label(entry)}: {entry['seconds']:.4f} s (spread {entry['spread']:.4f})"]
    parts.append(f"{entry['tflops']:.4f} TFLOP/s")
    if "gemm_fraction" in entry:
        parts.append(f"{entry['gemm_fraction']:.0%} of GEMM's {entry['gemm_tflops']:.4g}")
    if "factor_gbps" in entry:
        parts.append(f"{entry['factor_gbps']:.4g} GB/s of the factor")
    if entry["peak_bytes"]:
        panels = f" = {entry['peak_panels']:.2f} panels a rank" if "peak_panels" in entry else ""
        parts.append(f"{entry['peak_bytes'] / 2**20:.1f} MiB{panels}")
    parts.append(f"error {entry['backward_error']:.1e}")
    if "same_bits" in entry:
        parts.append("same bits" if entry["same_bits"] else "OTHER BITS")
    return ", ".join(parts)


def save(entries, args):
    if args.out == "-":
        return
    root = pathlib.Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", HERE.parent))
    path = pathlib.Path(args.out or root / "benchmarks/results" / f"{args.platform}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as f:
        f.writelines(json.dumps(entry) + "\n" for entry in entries)


def print_ratios(entries):
    """Prints the speed of each measurement of jaxmg relative to others with as many threads."""
    for ours, theirs in itertools.product(entries, entries):
        if ours["backend"] not in JAXMG_BACKENDS or theirs["backend"] in JAXMG_BACKENDS:
            continue
        if ours["threads"] and ours["ranks"] * ours["threads"] != theirs["threads"]:
            continue
        text = f"{theirs['seconds'] / ours['seconds']:.3f}"
        if "factor_seconds" in theirs:
            text += (
                f" ({theirs['factor_seconds'] / ours['seconds']:.3f} of its factorization alone)"
            )
        print(f"  {label(ours)}: {text} times the speed of {label(theirs)}", flush=True)


def label(case):
    parts = [case["routine"], case["dtype"], *filter(None, [case["precision"]])]
    parts += [case["matrix"]] * (case["matrix"] != "dominant") + [f"n={case['n']}"]
    parts += [f"{key}={case[key]}" for key in ("nrhs", "T_A") if case[key]]
    parts += [case["backend"], f"{case['ranks']} rank(s)"]
    if case["threads"]:
        parts.append(f"{case['threads']} thread(s)")
    if case.get("eigensolver", "auto") != "auto":
        parts.append(f"eigensolver {case['eigensolver']}")
    return " ".join(parts)


def command(words):
    """Returns the command that repeats a record, without the paths of its outputs."""
    words = list(words)
    for name in ("--out", "--trace"):
        while name in words:
            place = words.index(name)
            del words[place : place + 2]
    return words


if __name__ == "__main__":
    app.run(main, flags_parser=batches_of)
