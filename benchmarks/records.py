"""The part of every record that states its origin."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import shlex

PACKAGES = (
    "jaxmg", "jaxmg-plugin-cpu", "jaxmg-plugin-cuda12", "jaxmg-plugin-cuda13",
    "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy", "scipy",
    "nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12", "nvidia-cusolver-cu12",
    "nvidia-cuda-runtime", "nvidia-cublas", "nvidia-cusolver",
)  # fmt: skip


def origin(devices, command):
    """Returns date, machine, versions and command; `devices` may be None for the host itself."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": devices or host(),
        "versions": versions(),
        "command": command,
    }


def python(program, words):
    """Returns the command that runs a program of the repository, without folders of one machine."""
    words = [os.path.basename(word) if os.path.isabs(word) else word for word in words]
    return shlex.join(["python", program, *words])


def append(path, record):
    """Appends a record to the file ``path``, if there is one."""
    if path:
        with open(path, "a") as file:
            print(json.dumps(record), file=file)


def name_of(devices):
    """Names these GPUs; None for CPU devices, for which the host's name says more."""
    if devices[0].platform == "cpu":
        return None
    return f"{len(devices)} x {devices[0].device_kind}"


def host():
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as f:
        name = next((line.split(": ")[1].strip() for line in f if "model name" in line), name)
    return f"{name}, {os.cpu_count()} cores"


def versions():
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
