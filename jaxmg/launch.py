"""``python -m jaxmg.launch -n 4 script.py``: runs a script in several processes of this host.

Each process calls ``jax.distributed.initialize()`` without arguments and has its own devices. The
launcher prints their output with the process's number before each line. A process fails if its
script ends with a nonzero exit code, a signal or an exception. The launcher then ends the others
and returns the exit code of the first process that failed; one that a signal ended counts as the
first. If some scripts ended ten seconds ago and others still run, a line names both. The processes
inherit a secret by which they recognize each other.
"""

import argparse
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time

_GRACE = 5  # seconds between SIGTERM, which jax.distributed catches and ignores, and SIGKILL
_POLL = 0.05
_SETTLE = 0.5  # seconds to wait, after a failure, for a death by a signal that may have caused it
_BEFORE_NOTICE = 10  # seconds between the end of a script and the notice that others still run


def main(arguments: list[str] | None = None) -> int:
    """Runs the processes and returns the exit code."""
    options = _parse(arguments)
    address = f"127.0.0.1:{free_port()}"
    secret = secrets.token_bytes(32)
    processes: list[_Process] = []
    stop = _Stop(processes)
    try:
        for index in range(options.processes):
            processes.append(_start(index, options, address, secret))
        return _wait(processes, stop)
    finally:
        _end(processes)
        stop.restore()


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m jaxmg.launch",
        usage="%(prog)s -n PROCESSES [options] (SCRIPT | -m MODULE) [arguments ...]",
        description="Runs a script in several processes of this host, for jax.distributed.",
    )
    parser.add_argument("-n", "--processes", type=_positive, required=True, help="how many")
    parser.add_argument(
        "-d", "--devices-per-process", type=_positive, default=1, metavar="K",
        help="process i has the GPUs i K to i K + K - 1, or K CPU devices; 1 by default",
    )  # fmt: skip
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    parser.add_argument("target", metavar="SCRIPT | MODULE")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1; got {text!r}")
    return int(text)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class _Process(subprocess.Popen):
    printers: list[threading.Thread]  # print its output
    failure: int  # a pipe from which its script's exit code can be read
    announced: int | None = None  # that code, known while the process waits for jax.distributed
    ended_at: float | None = None  # when the end of its script was noticed

    def failed(self):
        """Returns the exit code, or minus the signal, of a failed process; else 0 or None."""
        if self.poll() is None and self.announced is None:
            try:
                if told := os.read(self.failure, 1):
                    self.announced = told[0]
            except BlockingIOError:
                pass
        code = self.announced if self.returncode is None else self.returncode
        if code is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
        return code


def _start(index, options, address, secret):
    count = options.devices_per_process
    environment = {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,  # unreachable from other hosts
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(index * count, (index + 1) * count))),
        "JAX_NUM_CPU_DEVICES": str(count),
        "PYTHONUNBUFFERED": "1",
    }
    child = pathlib.Path(__file__).parent / "_processes" / "child.py"
    kind = "module" if options.module else "script"
    told, tells = os.pipe()
    hears, failure = os.pipe()
    os.set_blocking(hears, False)
    os.write(tells, secret)
    os.close(tells)
    try:
        process = _Process(
            [sys.executable, child,
             *map(str, (index, options.processes, os.getpid(), told, failure)), kind,
             options.target, *options.arguments],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=(told, failure),
            start_new_session=True,  # its children are ended with it
        )  # fmt: skip
    finally:
        os.close(told)
        os.close(failure)
    process.failure = hears
    prefix = f"[{index}] ".encode()
    process.printers = [
        threading.Thread(target=_print, args=(source, sink.buffer, prefix))
        for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    ]
    for printer in process.printers:
        printer.daemon = True
        printer.start()
    return process


_printing = threading.Lock()


def _print(source, sink, prefix):
    for line in source:
        with _printing:
            sink.write(prefix + line.rstrip(b"\n") + b"\n")
            sink.flush()


def _wait(processes, stop):
    """Waits until all processes have ended or one has failed; returns the exit code."""
    noticed: set[int] = set()
    while True:
        # After a signal, which all processes get, each may end in its own way.
        codes = [process.poll() if stop.signal else process.failed() for process in processes]
        if any(codes):
            first, code = _first_failure(processes, codes, stop)
            how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            if not stop.signal:
                print(f"[{first}] failed: {how}; ending the others", file=sys.stderr, flush=True)
            return code if code > 0 else 128 - code
        if all(process.poll() is not None for process in processes):
            return 128 + stop.signal if stop.signal else 0
        if stop.is_over():
            return 128 + stop.signal
        _say_who_has_ended(processes, noticed)
        time.sleep(_POLL)


def _first_failure(processes, codes, stop):
    """Returns the index and the code of the process whose failure caused the others'.

    A process that a signal ended is the cause, since the loss of another process has other effects.
    The exception is SIGABRT: JAX aborts processes that have lost another one.
    """
    seen, until = codes, time.monotonic() + _SETTLE
    while not stop.signal and time.monotonic() < until and not any(map(_is_cause, codes)):
        time.sleep(_POLL)
        codes = [code or process.failed() for code, process in zip(codes, processes, strict=True)]
    failed = [index for index, code in enumerate(codes) if code]
    first = min(failed, key=lambda i: (not _is_cause(codes[i]), not seen[i], i))
    return first, codes[first]


def _is_cause(code):
    return code is not None and code < 0 and code != -signal.SIGABRT


def _say_who_has_ended(processes, noticed):
    """Prints once for each process that its script has ended while others still run."""
    now = time.monotonic()
    ended = [i for i, process in enumerate(processes) if process.ended_at is not None]
    late = {i for i in ended if now - processes[i].ended_at > _BEFORE_NOTICE} - noticed
    if not late or len(ended) == len(processes):
        return
    noticed |= late
    running = sorted({*range(len(processes))} - {*ended})
    print(
        f"[{', '.join(map(str, sorted(late)))}] ended {_BEFORE_NOTICE} s ago; "
        f"still running: [{', '.join(map(str, running))}]",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _end(processes):
    """Ends the running processes and their children."""
    for number, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            if number == signal.SIGKILL or not process.announced:
                _signal(process, number)
        until = time.monotonic() + seconds
        while any(process.poll() is None for process in running) and time.monotonic() < until:
            time.sleep(_POLL)
    failed = any(process.returncode for process in processes)
    for process in processes:
        if failed:
            _signal(process, signal.SIGKILL)
        for printer in process.printers:
            printer.join(1)
        os.close(process.failure)


def _signal(process, number):
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


class _Stop:
    """Passes Ctrl-C and SIGTERM on to the processes, which aren't in the terminal's group."""

    def __init__(self, processes):
        self.signal = 0
        self._until = float("inf")
        self._processes = processes
        self._before = {
            number: signal.signal(number, self._pass) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def _pass(self, number, frame):
        # A second request means that the user doesn't want to wait.
        self.signal, again = number, self.signal
        if number == signal.SIGTERM:
            self._until = time.monotonic() + _GRACE
        for process in self._processes:
            if process.poll() is None:
                _signal(process, signal.SIGKILL if again else number)

    def is_over(self):
        """Returns whether the grace period after SIGTERM is over. Ctrl-C sets no limit."""
        return time.monotonic() > self._until

    def restore(self):
        for number, handler in self._before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
