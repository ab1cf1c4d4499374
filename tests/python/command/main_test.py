"""Tests in processes of their own: the import, ``python -m jaxmg``, and a lack of threads."""

import dataclasses
import os
import resource
import sys

import cases
import jax
import numpy as np
import pytest
from processes import run

import jaxmg
from jaxmg import __main__
from jaxmg._command import bench
from jaxmg._plugin import plugins

_IMPORT = """
import sys
import jax
config = dict(jax.config.values)
import jaxmg
from jax._src import xla_bridge
assert dict(jax.config.values) == config, "jax.config was changed"
assert not xla_bridge._backends, "a device was touched"
assert not [name for name in sys.modules if name.startswith("jaxmg_plugin")], "plugin loaded"
assert "matplotlib" not in sys.modules and "scipy" not in sys.modules
"""

# Stacks are too large to be reused by the next thread, and the address space soon has no room for
# more of them.
_FEW_THREADS = """
import os, re, resource, sys, time
stack = 64 << 20
soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
if soft != stack:
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
    os.execv(sys.executable, sys.orig_argv)
import jax
import jax.numpy as jnp
import jaxmg
mesh = jax.make_mesh((8,), ("r",))
def solve():
    return jax.block_until_ready(jaxmg.potrs(jnp.eye(16), jnp.ones(16), 2, mesh))
def size():
    return int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
unlimited = resource.getrlimit(resource.RLIMIT_AS)
for _ in range(20):  # the stacks of the call before may still be there, and make room
    solve()
    used = min(size() for _ in range(10) if not time.sleep(0.02))
    resource.setrlimit(resource.RLIMIT_AS, (used + 3 * stack + stack // 2, unlimited[1]))
    try:
        solve()
    except jax.errors.JaxRuntimeError as error:
        print(error)
        break
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
assert (solve() == 1).all()
"""


@pytest.mark.extended
def test_import_touches_nothing():
    result = run("-c", _IMPORT)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_rank_that_fails_before_it_meets_the_others():
    """The other ranks get the error at once, and the next call works."""
    if "cpu" not in plugins.entry_points():
        pytest.skip("needs the plugin for CPU devices")
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if 0 <= hard < 64 << 20:
        pytest.skip(f"needs stacks of 64 MiB; the limit here is {hard} bytes")
    result = run(
        "-c", _FEW_THREADS, JAX_PLATFORMS="cpu", MALLOC_ARENA_MAX="2",
        XLA_FLAGS="--xla_force_host_platform_device_count=8", JAXMG_RENDEZVOUS_TIMEOUT="1000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "RESOURCE_EXHAUSTED" in result.stdout
    assert "potrs: can't start a thread for rank" in result.stdout


@pytest.mark.slow
def test_report():
    result = run("-m", "jaxmg", JAX_ENABLE_X64="1")
    assert result.returncode == 0, result.stdout + result.stderr
    for part in ("python", "jax", "jaxlib", "numpy", "potrs", "potri", "syevd", "all right"):
        assert part in result.stdout
    assert result.stdout.count(" ok\n") == 4


@pytest.mark.slow
def test_report_says_what_the_solve_changed():
    """The report shows changes after the solve, since a plugin opens most libraries at the first
    call that needs them."""
    pretend = (
        "import itertools, runpy, jax; from jaxmg._plugin import plugins;"
        "plugin = plugins.load(jax.devices()[0].platform); calls = itertools.count();"
        "plugin.about = lambda: {'same': 0, 'opened': next(calls)};"
        "runpy.run_module('jaxmg', run_name='__main__', alter_sys=True)"
    )
    before, after = run("-c", pretend).stdout.split("checked solve")
    assert "opened: 0" in before and "same: 0" in before
    assert "opened: 1" in after and "same: 0" not in after


@pytest.mark.slow
def test_bench():
    """The report has a measured time, JAX's time, and the largest n that fits, as far as it is
    known."""
    result = run("-m", "jaxmg", "--bench", "61", "--repeat", "2", "--routine", "potri")
    assert result.returncode == 0, result.stdout + result.stderr
    head, part = result.stdout.split("\n\n")
    assert head.startswith(f"n = {_rounded(61)}, float")
    assert "\nexpected: the time to compile 2 programs" in head
    assert part.startswith("potri\n")
    for name in ("jaxmg: ", "JAX, one device: "):
        (line,) = (line for line in part.split("\n") if line.strip().startswith(name))
        assert "(2 runs" in line and " GFLOP/s" in line and line.endswith(" ok")
    assert "JAX / jaxmg: " in part and "larger n: " in part


def test_bench_leaves_out_what_does_not_fit(capsys):
    assert bench.bench(8_000_000, ("potrs",), "complex64", repeat=1, limit=60)
    out = capsys.readouterr().out
    assert "left out: it needs" in out and "GFLOP/s" not in out


@pytest.mark.slow
def test_bench_leaves_out_what_takes_too_long(capsys, monkeypatch):
    monkeypatch.setattr(bench, "_PILOT_FROM", 64)
    assert bench.bench(64, ("potrs",), "float32", repeat=1, limit=1e-6)
    out = capsys.readouterr().out
    assert out.count("--limit is 1e-06") == 2 and "GFLOP/s" not in out


@pytest.mark.slow
@pytest.mark.parametrize("routine", bench.ROUTINES)
def test_bench_finds_a_wrong_result(routine, capsys):
    def nearly(a, b):
        """Returns results whose last entries are wrong in the third digit."""
        result = kind.ours(a, b)
        result = tuple(result) if isinstance(result, tuple) else result
        return jax.tree.map(lambda part: part.at[-1].multiply(1.01), result)

    kind = bench.KINDS[routine]
    mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("rank",))
    for solve, right in ((kind.ours, True), (nearly, False)):
        case = bench._Case(kind, np.dtype("float64"), mesh, solve)
        assert bench._measure("name", case, 40, 1)[1] is right
        assert ("WRONG, the limit is" in capsys.readouterr().out) is not right


def _rounded(n):
    return -(-n // len(jax.devices())) * len(jax.devices())


@pytest.mark.slow
def test_bench_expects_a_time_before_it_starts(capsys, monkeypatch):
    monkeypatch.setattr(bench, "_PILOT_FROM", 64)
    assert bench.bench(64, ("gesv", bench.ROUTINES[-1]), "float32", repeat=1, limit=60)
    head, *parts = capsys.readouterr().out.split("\n\n")
    assert "\nexpected: at most about " in head and "s (from runs of order n / 8)" in head
    if "batch" in bench.ROUTINES:
        assert parts[1].startswith("batch of 256 matrices of order 4, by vmap of potrs\n")
    assert all(part.count(" ok") == 2 for part in parts)


@cases.one_process("it has three local devices")
@pytest.mark.skipif("batch" not in bench.ROUTINES, reason="batches need a newer JAX")
def test_bench_of_a_batch_that_the_devices_do_not_divide(capsys, monkeypatch):
    cases.devices(3)
    devices = jax.local_devices()[:3]
    monkeypatch.setattr(jax, "local_devices", lambda *args, **kwargs: devices)
    assert bench.bench(48, ("batch",), "float32", repeat=1, limit=60)
    out = capsys.readouterr().out
    assert "batch of 258 matrices of order 3, by vmap" in out and out.count(" ok") == 2


def test_bench_has_an_order_for_each_platform(capsys, monkeypatch):
    monkeypatch.setattr(bench, "_DEFAULT", {"cpu": 8, "gpu": 8})
    assert bench.bench(None, ("potrs",), "float32", repeat=1, limit=60)
    assert capsys.readouterr().out.startswith(f"n = {_rounded(8)}, float32")


@pytest.mark.parametrize("routine", sorted({k.plan for k in bench.KINDS.values() if k.plan}))
def test_largest_order_is_the_last_that_fits(routine):
    devices, room = jax.devices(), 1 << 30
    n = bench.largest_order(routine, "float32", devices, room)

    def fits(n):
        return (
            bench._required_bytes(jaxmg.plan(routine, n, "float32", devices, donate=True)) <= room
        )

    assert n > 0 and fits(n) and not fits(n + 1024)
    assert bench.largest_order(routine, "float32", devices, None) is None


def test_what_a_backend_does_not_say_is_not_taken_to_fit(monkeypatch):
    plan = jaxmg.plan

    def silent_beyond(routine, n, *args, **kwargs):
        found = plan(routine, n, *args, **kwargs)
        return dataclasses.replace(found, bytes=()) if n > 4096 else found

    monkeypatch.setattr(jaxmg, "plan", silent_beyond)
    assert bench.largest_order("syevd", "float32", jax.devices(), 1 << 40) == 4096


def test_version(capsys):
    assert __main__.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("jaxmg ")


def test_report_names_the_variables_that_change_results(monkeypatch, capsys):
    for name in list(os.environ):
        if name.startswith(__main__._CHANGE_RESULTS):
            monkeypatch.delenv(name)
    __main__._print_environment()
    assert "none: of NVIDIA_TF32_OVERRIDE, CUBLAS_EMULATE_" in capsys.readouterr().out
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    __main__._print_environment()
    out = capsys.readouterr().out
    assert "NVIDIA_TF32_OVERRIDE: 1" in out and "CUBLAS_EMULATE_DOUBLE_PRECISION: 1" in out


@pytest.mark.parametrize("words", [("--bench", "0"), ("--repeat", "3"), ("--bench", "9", "-x")])
def test_command_lines_that_are_wrong(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["jaxmg", *words])
    with pytest.raises(SystemExit) as stop:
        __main__.main()
    assert stop.value.code == 2 and "usage: python -m jaxmg" in capsys.readouterr().err


@cases.one_process("JAX has started in each of several")
def test_report_where_jax_does_not_start(monkeypatch, capsys):
    """If JAX can't start, the report goes on with the plugins, and fails."""

    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert __main__.main([]) == 1
    out = capsys.readouterr().out
    assert "error: JAX can't start: RuntimeError: Unable to initialize backend 'cuda'" in out
    assert "JAX_PLATFORMS: cuda" in out
    assert "\nplugins\n" in out[out.index("can't start") :] and out.endswith("\nFAILED\n")


@pytest.mark.extended
def test_report_without_a_plugin():
    """Without a plugin the report names the extra to install, and fails."""
    hide = (
        "import importlib.metadata as m, runpy, sys; m.entry_points = lambda **_: [];"
        "runpy.run_module('jaxmg', run_name='__main__', alter_sys=True)"
    )
    result = run("-c", hide)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "pip install --find-links WHEELS 'jaxmg[" in result.stdout
