"""Runs programs of tests/processes/worker.py on the GPUs of a job: solves with collectives, in
loops and in two programs at once, replicas, NumPy arrays, and a thousand calls.

    python -m jaxmg.launch -n 2 tests/gpu/jobs.py [COUNT]
"""

import pathlib
import sys
import time

import jax

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "processes"))

import worker  # noqa: E402


def main():
    count = sys.argv[1] if len(sys.argv) > 1 else "200"
    jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)
    for name, *arguments in (
        ("solve", "300", "3"), ("addresses",), ("replicas",), ("numpy_inputs",),
        ("beside", count), ("bits",), ("growth", "1000"),
    ):  # fmt: skip
        start = time.monotonic()
        getattr(worker, name)(*arguments)
        worker.say(f"{name}: passed in {time.monotonic() - start:.1f} seconds")


if __name__ == "__main__":
    main()
