"""Helpers of the check programs: one line per check, sections by name, the number of failures."""

import sys
import time
import traceback

import jax
import numpy as np
from absl import app, flags
from jax.sharding import Mesh

import jaxmg

jax.config.update("jax_enable_x64", True)

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Small sizes, to try the sections.")

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
    """Runs the sections that the command line names, by default all except ``left_out``, and
    exits."""
    app.run(lambda argv: _run(sections, argv[1:] or [x for x in sections if x not in left_out]))


def _run(sections, names):
    if unknown := [name for name in names if name not in sections]:
        raise app.UsageError(f"no section {', '.join(unknown)}; there are {', '.join(sections)}")
    for name in names:
        start = time.perf_counter()
        sections[name](FLAGS.quick)
        print(f"-- {name}: {time.perf_counter() - start:.0f} s", flush=True)
    print(jaxmg._plugin.plugins.load(jax.default_backend()).about())
    print(f"{len(failures)} failures", *failures, sep="\n  ")
    sys.exit(min(len(failures), 100))
