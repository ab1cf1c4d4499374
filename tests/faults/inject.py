"""Makes every allocation and every thread start of a call fail once, on four CPU devices.

    inject.py FAILING_SO [--cases potrs,syevd] [--limit 20] [--out FILE]

FAILING_SO is failing.cc, built; the environment may name it instead. A child process calls each
routine (routine_calls.py) repeatedly; each time another of the plugin's allocations fails. The call
must raise JaxRuntimeError, or return the right result if it can do without the allocation. Then the
next call must be right, the arguments must be unchanged, and no thread and no memory of the plugin
may remain. A child that answers late or dies counts as a hang or an abort of that failure, and
another child continues with the next one. After that, several consecutive calls fail, and some have
hardly any address space left.

Prints a line for each fault found, and exits with 1 if there is one. --out, or FAULTS_OUT in the
environment, is a file to which it appends a record of the run (benchmarks/records.py).
"""

import argparse
import collections
import concurrent.futures
import ctypes
import json
import os
import pathlib
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

import routine_calls

_ROOT = pathlib.Path(__file__).resolve().parents[2]

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Longer than the driver waits: a rank that gets no error is a hang, not a late rank.
    "JAXMG_RENDEZVOUS_TIMEOUT": "600",
    # Large blocks are mapped and unmapped, and threads have no arenas with reserved memory, so a
    # limit of the address space takes effect at once.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
}

# The counts of the record, also if they are 0.
COUNTS = ("injected", "errors", "survived", "wrong", "hangs", "aborts", "left behind")
# OpenBLAS ends the process if there is no memory for the buffer of one more thread.
_BLAS_GAVE_UP = "OpenBLAS error: Memory allocation still failed"
# The plugin keeps at most this number of recent failures; growth beyond it is a leak.
_KEPT = 64
# A child's messages between its answers. The limit applies to a call, not to the check of its
# result, which takes seconds for a large matrix, and many times as long on a busy machine.
_CALLED, _CHECKED = "called", "checked"
_CHECK_LIMIT = 240
_ADDRESS_SPACE = [1, 2, 4, 6, 8, 12, 16, 17, 18, 19, 20, 24, 32, 64]


class Child:
    """Answers the driver's orders, JSON lines, in a process with FAILING_SO preloaded."""

    def __init__(self, shim, name):
        sys.path.insert(0, str(_ROOT / "tests/python"))  # cases.py, for routine_calls.py
        from jaxmg._plugin import plugins

        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # some error messages go to stdout
        self.name, self.shim = name, ctypes.CDLL(shim)
        self.shim.failing_counted.restype = ctypes.c_size_t
        self.shim.failing_disarm.restype = self.shim.failing_live.restype = ctypes.c_int64
        self.plugin = plugins.load("cpu")
        self.library = self.plugin._native.__file__
        if not self.shim.failing_library(self.library.encode()):
            raise RuntimeError(f"{self.library} is not loaded")
        self.problem = routine_calls.Problem(name)
        self.calls = {}  # point: the maximum of its calls in one call
        for turn in range(12):
            if turn >= 6:
                self.shim.failing_count()
            self.problem.check(self.problem.call())
            self.settle()
            if turn >= 6:
                self.count()
        self.live, self.threads = self.left()

    def count(self):
        capacity = 8192
        points = (ctypes.c_uint64 * capacity)()
        calls = (ctypes.c_int64 * capacity)()
        kinds = (ctypes.c_int * capacity)()
        self.shim.failing_kind.restype = ctypes.c_char_p
        for i in range(self.shim.failing_counted(points, calls, kinds, ctypes.c_size_t(capacity))):
            kind = self.shim.failing_kind(kinds[i]).decode()
            self.calls[points[i]] = (kind, max(calls[i], self.calls.get(points[i], (kind, 0))[1]))

    def left(self):
        """Returns (allocations of the plugin that aren't freed, threads of this process)."""
        return self.shim.failing_live(), len(os.listdir("/proc/self/task"))

    def settle(self):
        """Waits until the remains of a call stop decreasing; a rank's thread ends shortly after its
        call."""
        left, since = self.left(), time.monotonic()
        while time.monotonic() < since + 0.005:
            now = self.left()
            if now != left:
                left, since = now, time.monotonic()
        return left

    def inject(self, point, first, length):
        """Makes one call with these failures and one without; returns the outcomes of both."""
        outcome, failed = self.fail(point, first, length)
        following, left = self.outcome(), self.grown()
        if max(left) > 0:
            # The memory that one failure keeps varies if several ranks fail together.
            for calls in (_KEPT, 3 * _KEPT):
                for _ in range(calls):
                    self.fail(point, first, length)
                live, threads = self.grown()
            left = (live - _KEPT, threads)
        return {"failed": failed, "outcome": outcome, "next": following, "left": left}

    def fail(self, point, first, length):
        """Returns (the outcome of a call with these failures, the number of failures)."""
        self.shim.failing_arm(ctypes.c_uint64(point), ctypes.c_int64(first), ctypes.c_int64(length))
        outcome = self.outcome()
        return outcome, self.shim.failing_disarm()

    def grown(self):
        """Returns the growth of (allocations, threads) since the last call."""
        for _ in range(100):
            live, threads = self.settle()
            if live <= self.live and threads <= self.threads:
                break
            time.sleep(0.01)
        left = (live - self.live, threads - self.threads)
        self.live, self.threads = live, threads
        return left

    def enlarge(self):
        """Switches to a matrix whose workspace is megabytes."""
        self.problem = routine_calls.Problem(self.name, large=True)
        for _ in range(10):  # so that BLAS has a buffer for each rank
            self.problem.call()
        return {"failed": 1, "outcome": self.outcome(), "next": self.outcome(), "left": (0, 0)}

    def limit(self, mebibytes):
        """Makes one call with this much address space left, and one without a limit.

        XLA may find no memory for one device's data, and doesn't tell the others: ranks whose
        devices have theirs wait for the time limit of the rendezvous.
        """
        _, hard = resource.getrlimit(resource.RLIMIT_AS)

        def set_limit(size):
            resource.setrlimit(resource.RLIMIT_AS, (size, hard))

        status = pathlib.Path("/proc/self/status").read_text().split()
        size = int(status[status.index("VmSize:") + 1]) << 10
        usual = self.plugin.rendezvous_timeout()
        self.plugin.set_rendezvous_timeout(2)
        set_limit(size + (mebibytes << 20))
        outcome = self.outcome(lambda: set_limit(hard))
        self.plugin.set_rendezvous_timeout(usual)
        return {"failed": 1, "outcome": outcome, "next": self.outcome(), "left": (0, 0)}

    def outcome(self, after_call=lambda: None):
        """Returns "right", the code of the error, or a description of what is wrong."""
        import jax

        try:
            result = self.problem.call()
        except jax.errors.JaxRuntimeError as error:
            code, _, text = str(error).partition(": ")
            return code if code.isupper() and text else f"wrong: an error without a code: {error}"
        except Exception as error:
            return f"wrong: {type(error).__name__}: {error}"
        finally:
            after_call()
        self.say(_CALLED)
        try:
            self.problem.check(result)
        except AssertionError as error:
            return f"wrong: {' '.join(str(error).split())}"
        finally:
            self.say(_CHECKED)
        return "right"

    def say(self, answer):
        print(json.dumps(answer), file=self.answers, flush=True)

    def serve(self):
        self.say(
            {
                "library": self.library,
                "points": [(point, *calls) for point, calls in self.calls.items()],
            }
        )
        for line in sys.stdin:
            order, arguments = json.loads(line)
            self.say(getattr(self, order)(*arguments))


class Driver:
    """Makes all failures of one case, with as many children as it needs."""

    def __init__(self, options, name):
        self.options, self.name = options, name
        self.child, self.before, self.library = None, 0, None
        self.counts = collections.Counter()

    def start(self):
        """Starts a child; returns its first answer, after the warm-up, or "hang" or "abort"."""
        shim = str(pathlib.Path(self.options.shim).resolve())
        # Memory, not a file, so that the last words of a dying process are there.
        self.log = os.fdopen(os.memfd_create("stderr"), "r+")
        self.child = subprocess.Popen(
            [sys.executable, __file__, shim, "--child", self.name],
            env={**os.environ, **_ENVIRONMENT, "LD_PRELOAD": shim},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        self.unread = b""
        return self.answer(120)

    def answer(self, limit):
        """Returns the child's next answer, or "hang" or "abort"."""
        wait = limit
        while True:
            line = self.line(wait)
            said = json.loads(line) if line else "abort" if line is not None else "hang"
            if said not in (_CALLED, _CHECKED):
                return said
            wait = max(limit, _CHECK_LIMIT) if said == _CALLED else limit

    def line(self, limit):
        """Returns the child's next line, an empty one at its end, or None if the time is over."""
        pipe = self.child.stdout.fileno()
        while b"\n" not in self.unread:
            if not select.select([pipe], [], [], limit)[0]:
                return None
            piece = os.read(pipe, 1 << 16)
            if not piece:
                return b""
            self.unread += piece
        line, _, self.unread = self.unread.partition(b"\n")
        return line

    def ask(self, order, *arguments, limit=None):
        self.before = os.fstat(self.log.fileno()).st_size
        self.child.stdin.write(json.dumps((order, arguments)).encode() + b"\n")
        self.child.stdin.flush()
        return self.answer(limit or self.options.limit)

    def said(self):
        """Returns the child's output to stderr since the last order, with names for addresses."""
        self.log.seek(self.before)
        return "\n".join("  " + self.named(line) for line in self.log.read().splitlines())

    def named(self, line):
        """Returns `failing: malloc 0x1c 0x2d` with the project's lines of code at these offsets, if
        the library was built with -g."""
        words = line.split()
        if words[:1] != ["failing:"] or not shutil.which("addr2line"):
            return line
        command = ["addr2line", "-ie", self.library, *words[2:]]
        places = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        ours = [place.split("/xla_ffi/")[-1] for place in places if "/xla_ffi/" in place]
        return " < ".join([line, *ours])

    def stop(self, result=None):
        """Ends the child, which must exit by itself unless it hangs. Returns a description of what
        went wrong."""
        if result == "hang" and self.options.gdb:
            command = ["gdb", "-batch", "-p", str(self.child.pid), "-ex", "thread apply all bt 12"]
            print(subprocess.run(command, capture_output=True, text=True).stdout, flush=True)
        self.child.stdin.close()
        try:
            code = self.child.wait(0 if result == "hang" else self.options.limit)
        except subprocess.TimeoutExpired:
            self.child.kill()
            code = self.child.wait()
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with {code}" if code else ""

    def run(self):
        """Makes all failures; returns the number of faults found."""
        start = time.monotonic()
        first = self.start()
        if isinstance(first, str):
            print(f"{self.name}: warm-up: {first}\n{self.said()}\n{self.stop(first)}", flush=True)
            return 1
        self.library = first["library"]
        orders = list(self.orders(first["points"]))
        kinds = collections.Counter()
        for _, kind, calls in first["points"]:
            kinds[kind] += calls
        print(f"{self.name}: {sum(kinds.values())} calls of {len(first['points'])} points:", *(
            f"{count} {kind}" for kind, count in sorted(kinds.items())
        ), flush=True)  # fmt: skip
        enlarged = False
        given_up = set()  # points whose other calls aren't tried
        for what, order in orders:
            point = order[1] if order[0] == "inject" else 0
            if point in given_up:
                self.counts["not tried"] += 1
                continue
            if self.child is None:
                self.start()
                enlarged = False
            if order[0] == "limit" and not enlarged:
                self.ask("enlarge", limit=120)
                enlarged = True
            result = self.ask(*order)
            if isinstance(result, str):
                said = self.said()
                if order[0] == "limit" and _BLAS_GAVE_UP in said:
                    self.stop(result)
                    self.child = None
                    self.counts["ended by OpenBLAS"] += 1
                    continue
                self.counts[result + "s"] += 1
                self.counts["injected"] += 1
                print(f"{self.name}: {what}: {result}, {self.stop(result)}\n{said}", flush=True)
                self.child = None
                given_up.update({point} - {0})
            elif not self.judge(what, result):
                given_up.update({point} - {0})
        if self.child is not None:
            if wrong := self.stop():
                self.counts["aborts"] += 1
                print(f"{self.name}: at its end: {wrong}\n{self.said()}", flush=True)
        seconds = time.monotonic() - start
        print(f"{self.name}: {dict(self.counts)}, {seconds:.0f} s", flush=True)
        return self.counts["hangs"] + self.counts["aborts"] + self.counts["wrong"]

    def orders(self, points):
        """Yields (description, order for the child) of all failures."""
        total = 0
        for point, kind, calls in sorted(points, key=lambda point: point[1]):
            total += calls
            for call in range(1, calls + 1):
                yield f"{kind} {call} of {calls} of point {point:x}", ("inject", point, call, 1)
        step = max(1, total // self.options.rows)
        for first in range(1, total + 1, step):
            yield f"5 calls from {first} on", ("inject", 0, first, 5)
            # If all ranks fail at the same time, the result varies.
            for _ in range(10):
                yield f"all calls from {first} on", ("inject", 0, first, 1 << 40)
        if self.name in routine_calls.WITH_COLLECTIVES:
            return
        for mebibytes in self.options.address_space:
            yield f"{mebibytes} MiB of address space", ("limit", mebibytes)

    def judge(self, what, result):
        """Returns whether the result of a failure is acceptable."""
        outcome, following, left = result["outcome"], result["next"], result["left"]
        if not result["failed"]:
            self.counts["not reached"] += 1
            what += ", not reached"
        else:
            self.counts["injected"] += 1
        faults = [text for text in (outcome, following) if text.startswith("wrong")]
        if following != "right" and not faults:
            faults.append(f"the next call: {following}")
        if outcome != "right" and not result["failed"]:
            faults.append(f"nothing failed, but: {outcome}")
        if left[0] > 0 or left[1] > 0:
            self.counts["left behind"] += 1
            faults.append(f"{left[0]} allocations and {left[1]} threads stayed behind")
        if faults:
            self.counts["wrong"] += 1
            print(f"{self.name}: {what}: {'; '.join(faults)}\n{self.said()}", flush=True)
        elif outcome == "right":
            self.counts["survived"] += result["failed"] > 0
        else:
            self.counts["errors"] += 1
            self.counts[outcome] += 1
        return not faults


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shim = os.environ.get("FAILING_SO")
    parser.add_argument("shim", metavar="FAILING_SO", nargs="?" if shim else None, default=shim)
    parser.add_argument(
        "--cases", default=",".join(routine_calls.CASES), help="separated by commas"
    )
    parser.add_argument("--limit", type=float, default=20, help="seconds until a call hangs")
    parser.add_argument("--rows", type=int, default=25, help="starts of failures in a row")
    parser.add_argument(
        "--address_space", type=json.loads, default=_ADDRESS_SPACE, help="MiB, as a JSON list"
    )
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--out", default=os.environ.get("FAULTS_OUT"), help="file to append to")
    parser.add_argument("--gdb", action="store_true", help="show the stacks of what hangs")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def record(options, drivers, seconds):
    """Appends a record of a run: its counts by case and in total, and its origin."""
    sys.path.append(str(_ROOT / "benchmarks"))
    import records

    counts = {driver.name: driver.counts for driver in drivers}
    total = sum(counts.values(), collections.Counter())
    entry = {
        **records.origin(None, records.python("tests/faults/inject.py", sys.argv[1:])),
        **{key: total[key] for key in COUNTS},
        "seconds": round(seconds),
        "cases": {name: {key: 0 for key in COUNTS} | dict(found) for name, found in counts.items()},
    }
    with open(options.out, "a") as file:
        print(json.dumps(entry), file=file)


def main():
    options = parse()
    if options.child:
        Child(options.shim, options.child).serve()
        return
    counts, faults, start = collections.Counter(), 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        drivers = [Driver(options, name) for name in options.cases.split(",")]
        for driver, found in zip(drivers, pool.map(Driver.run, drivers), strict=True):
            faults += found
            counts.update(driver.counts)
    if options.out:
        record(options, drivers, time.monotonic() - start)
    print(f"{counts['injected']} injected:", ", ".join(f"{counts[k]} {k}" for k in COUNTS[1:]))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
