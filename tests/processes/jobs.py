"""Jobs of several processes that run a function of worker.py and can be watched, stopped and
killed."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from jaxmg.launch import free_port

_WORKER = pathlib.Path(__file__).with_name("worker.py")
_START = 60  # seconds, on a busy machine


class Job:
    """Processes that run ``worker.NAME(*arguments)``; a context manager that leaves none behind.

    Args:
        name: of a function of worker.py.
        *arguments: its arguments, as text.
        processes, devices: numbers of processes, and of devices in each.
        host: address at which the others reach process 0.
        prefixes: for each process, the command that starts it elsewhere; optional.
        **environment: variables, for all processes.
    """

    def __init__(
        self, name, *arguments, processes=2, devices=2, host="127.0.0.1", prefixes=None,
        **environment,
    ):  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_ENABLE_X64": "1",
            "JAXMG_RENDEZVOUS_TIMEOUT": "60",
            "OPENBLAS_NUM_THREADS": "1",
            **environment,
        }
        address = f"{host}:{free_port()}"
        self._outputs = [tempfile.TemporaryFile("w+b") for _ in range(processes)]
        self.processes = [
            subprocess.Popen(
                [
                    *(prefixes[index] if prefixes else ()),
                    *(sys.executable, _WORKER, address, str(processes), str(index), name),
                    *map(str, arguments),
                ],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )  # fmt: skip
            for index, output in enumerate(self._outputs)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
        for output in self._outputs:
            output.close()

    def output(self, index):
        """Returns a process's output so far."""
        descriptor = self._outputs[index].fileno()
        # pread doesn't seek: the process writes through the same descriptor.
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def until(self, index, text, seconds=_START):
        """Waits until a process has written a line with ``text``; returns its whole output."""
        end = time.monotonic() + seconds
        while "\n" not in (output := self.output(index)).partition(text)[2]:
            ended = self.processes[index].poll() is not None
            if (ended and text not in self.output(index)) or time.monotonic() > end:
                raise AssertionError(f"process {index} did not write {text!r}, but:\n{output}")
            time.sleep(0.02)
        return output

    def wait(self, *indices, seconds=_START):
        """Waits for processes, by default for all, and returns their outputs. They must end without
        an error.

        Process 0 may wait for its input to end (`worker.end_without_the_others`), so it comes last.
        """
        end = time.monotonic() + seconds
        for index in sorted(indices or range(len(self.processes)), reverse=True):
            self.processes[index].stdin.close()
            try:
                code = self.processes[index].wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                code = "none, it runs"
            assert code == 0, f"process {index}, exit code {code}:\n{self.output(index)}"
        return [self.output(index) for index in indices or range(len(self.processes))]

    @contextlib.contextmanager
    def stopped(self, index):
        """Stops a process in this context, as a debugger does."""
        self.processes[index].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes[index].send_signal(signal.SIGCONT)
