"""What programs of checks share: a line a check, sections by name, the number of failures."""

import argparse
import sys
import time
import traceback

import jax
import numpy as np
from jax.sharding import Mesh

import jaxmg

jax.config.update("jax_enable_x64", True)

failures = []


def report(name, ok, *facts):
    print("ok  " if ok else "FAIL", name, *facts, flush=True)
    if not ok:
        failures.append(name)


def attempt(name, function, *args):
    try:
        function(name, *args)
    except Exception as error:  # the table goes on
        lines = traceback.format_exc(limit=-2)
        report(name, False, type(error).__name__, str(error)[:600], lines[-300:])


def mesh_of(devices):
    return Mesh(np.array(devices), ("r",))


def eps(dtype):
    return float(np.finfo(dtype).eps)


def run(sections, left_out=()):
    """Runs the sections that the command line names, or all but those left out, and exits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("sections", nargs="*")
    args = parser.parse_args()
    for name in args.sections or [name for name in sections if name not in left_out]:
        start = time.perf_counter()
        sections[name](args.quick)
        print(f"-- {name}: {time.perf_counter() - start:.0f} s", flush=True)
    print(jaxmg._plugin.load(jax.default_backend()).about())
    print(f"{len(failures)} failures", *failures, sep="\n  ")
    sys.exit(min(len(failures), 100))
