"""The programs of the processes of a `jobs.Job`: all processes run one of the functions below.

worker.py ADDRESS PROCESSES INDEX NAME [ARGUMENT ...]
"""

import functools
import hashlib
import itertools
import json
import os
import sys
import time

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat, linalg
from jaxmg._plugin import plugins
from jaxmg._processes import rendezvous

# jaxlib raises ValueError if a program fails while it starts.
_ERRORS = (RuntimeError, ValueError)
# The backend of the long and of the many calls.
_BACKEND = os.environ.get("JAXMG_TEST_BACKEND", "auto")


def say(*words):
    print(*words, flush=True)


def line():
    return Mesh(np.array(jax.devices()), ("r",))


def matrix(n, seed=0):
    random = np.random.default_rng(seed)
    factor = random.standard_normal((n, n))
    return factor @ factor.T / n + np.eye(n)


def place(array, mesh, *entries):
    """Places an array without JAX's comparison of the processes' arrays, which is a program of its
    own."""
    sharding = NamedSharding(mesh, P(*entries))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def check(a, x, b):
    x = np.asarray(multihost_utils.process_allgather(x, tiled=True))
    np.testing.assert_allclose(a @ x, b, rtol=0, atol=1e-10)


def solve(n, count=1):
    """Solves ``count`` times, each time with another matrix."""
    n, mesh = int(n), line()
    b = np.arange(1.0, n + 1)
    for i in range(int(count)):
        a = matrix(n, i)
        x = jaxmg.potrs(place(a, mesh, "r", None), place(b, mesh))
        np.testing.assert_allclose(a @ np.asarray(x), b, rtol=0, atol=1e-9)
    say("solved")


def meet_a_stranger(folder):
    """Process 1 makes a call at once. Process 0 only writes the key-value store's entries about the
    job to a file, and makes the call once the file "go" exists."""
    if jax.process_index() == 0:
        store = _compat.key_value_store()
        known = {key: _compat.get_key(store, f"jaxmg/cpu/{key}", 60) for key in ("1", "job")}
        # Announces its address, as in its first call, and doesn't connect yet.
        job = rendezvous._jobs["cpu"] = rendezvous._Job(store, "cpu", 0)
        known["0"] = job._known[0]
        path = os.path.join(folder, "known")
        with open(path + "_", "w") as file:
            json.dump(known, file)
        os.rename(path + "_", path)
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.02)
    solve(8)


def addresses():
    """Prints the connections of this process to the others."""
    solve(8)
    for known in plugins.load(jax.local_devices()[0].platform).connections():
        say(known)


def interrupted(*waiting):
    """Makes a call that would run for hours, so that Ctrl-C must end it, and another one after it.
    Processes in ``waiting`` make the call only when their input has ended."""
    solve(8)
    mesh, n = line(), 400
    a, b = place(matrix(n), mesh, "r", None), place(np.ones(n), mesh)
    step = functools.partial(jaxmg.potrs, mesh=mesh, matrix_specs=P("r", None))
    forever = jax.jit(
        lambda a, b: jax.lax.fori_loop(0, 10**7, lambda i, x: step(a, b + x / n), 0 * b)
    )
    try:
        if str(jax.process_index()) in waiting:
            say("waits")
            sys.stdin.read()
        x = forever(a, b)
        say("in the call")
        jax.block_until_ready(x)
    except KeyboardInterrupt:
        say("KeyboardInterrupt")
    except _ERRORS as error:
        say("error:", " ".join(str(error).split()))
    solve(8)
    say("went on")


def patient(seconds):
    """One rank computes for at least this time, during which the others receive nothing."""
    mesh, n, start = line(), 500, time.monotonic()
    while time.monotonic() - start < float(seconds):
        n, start = 3 * n // 2, time.monotonic()
        w = jaxmg.syevd(place(matrix(n), mesh), return_eigenvectors=False)
        assert np.isfinite(w).all()
    say("all right,", n)


def from_host_memory(a):
    """Factors a matrix like ``a`` that isn't on the devices, on the devices of ``a``."""
    n = len(a)

    def entries(rows, columns):
        return (rows[:, None] == columns) + jax.numpy.ones((), a.dtype) / n

    made = jaxmg.Tiles(entries, (n, n), a.dtype)
    memory = max(a.nbytes / a.sharding.mesh.size / 2, 2e4)
    return jaxmg.cho_factor(made, mesh=a.sharding.mesh, memory=memory).log_det


def same(v):
    return v


def doubled(v):
    return 2 * v


def diagonal(rows, columns):
    return 1.0 * (rows[:, None] == columns)


# Name -> function of a, b and an LU factor of a, which only lu_solve uses.
_LONG_CALLS = {
    "potrs": lambda a, b, _: jaxmg.potrs(a, b, backend=_BACKEND),
    "gesv": lambda a, b, _: jaxmg.gesv(a, b, backend=_BACKEND),
    "lu_factor": lambda a, b, _: jaxmg.lu_factor(a),
    "host_potrf": lambda a, b, _: from_host_memory(a),
    "getri": lambda a, b, _: jaxmg.getri(a),
    "geqrf": lambda a, b, _: jaxmg.geqrf(a),
    "lu_solve": lambda a, b, factor: factor.solve(b),
    "wide": lambda a, b, _: jaxmg.least_squares(a, b),
    "tall": lambda a, b, _: jaxmg.linalg.qr(a[:, :3]),
    "least_squares": lambda a, b, _: jaxmg.linalg.least_squares(a[:, :3], b),
    "svd": lambda a, b, _: jaxmg.linalg.svd(a),
    "polar": lambda a, b, _: jaxmg.linalg.polar(a),
    "cg": lambda a, b, _: jaxmg.linalg.cg(a, b),
    "cg with M": lambda a, b, _: jaxmg.linalg.cg(a, b, M=same),
    "eigsh": lambda a, b, _: jaxmg.linalg.eigsh(
        doubled, 2, shape=a.shape, dtype=a.dtype, mesh=a.sharding.mesh
    ),
    "pivoted_cholesky": lambda a, b, _: jaxmg.linalg.pivoted_cholesky(
        jaxmg.Tiles(diagonal, a.shape, a.dtype), 2, mesh=a.sharding.mesh
    ),
    "svdvals": lambda a, b, _: jaxmg.linalg.svdvals(a),
}


def long_call(n, routine="potrs", further="potrs"):
    """Makes a call of a large order repeatedly, until it fails; prints when and why. Then does the
    same with one call of ``further``, which was compiled before.

    Rank 0 is in the last process: without process 0, its coordinator, JAX ends the others itself.
    """
    mesh, n = Mesh(np.array(jax.devices()[::-1]), ("r",)), int(n)
    fewer = 3 if routine == "wide" else 0
    b = place(np.ones(n - fewer), mesh)
    rows = NamedSharding(mesh, P("r", None))  # made on the devices, since n is large
    a = jax.jit(lambda: jax.numpy.eye(n - fewer, n) + 1.0 / n, out_shardings=rows)()
    small = place(np.eye(12 - fewer, 12), mesh, "r", None), place(np.ones(12 - fewer), mesh)
    factor = jaxmg.lu_factor(a) if routine == "lu_solve" else None
    call, again = _LONG_CALLS[routine], _LONG_CALLS[further]
    jax.block_until_ready(call(*small, factor) if factor is None else call(a, b, factor))
    if again is not call:  # of an order that compiles quickly
        a_again, b_again = small
        jax.block_until_ready(again(*small, factor))
    else:
        a_again, b_again = a, b
    say("in the call")
    try:
        while True:
            jax.block_until_ready(call(a, b, factor))
            say("again")
    except _ERRORS as error:
        say("failed:", error)
    try:  # a lost process stays lost: there is no second wait
        start = time.monotonic()
        jax.block_until_ready(again(a_again, b_again, factor))
    except _ERRORS as error:
        say(f"failed again after {time.monotonic() - start:.0f} s:", error)
    local = Mesh(np.array(jax.local_devices()), ("r",))  # local calls need no other process
    alone = jaxmg.potrs if routine == "potrs" else jaxmg.gesv
    np.testing.assert_allclose(alone(np.eye(8), np.ones(8), mesh=local), 1)
    say("went on alone")
    end_without_the_others()


def end_without_the_others():
    """Ends this process without JAX's shutdown, which waits for all processes, and aborts if one is
    gone.

    JAX ends processes whose coordinator, process 0, is gone. Therefore process 0 waits until the
    test has read the others' output.
    """
    sys.stdout.flush()
    if jax.process_index() == 0:
        sys.stdin.read()
    os._exit(0)


def absent(first):
    """Process 1 makes no call, or, with ``first``, none after the first."""
    mesh = line()
    a, b = place(np.eye(12), mesh, "r", None), place(np.ones(12), mesh)
    if first == "first":
        jax.block_until_ready(jaxmg.potrs(a, b))
    if jax.process_index() == 1:
        say("away")
        time.sleep(600)
    fail(lambda: jaxmg.potrs(a, b))
    end_without_the_others()


def fail(call):
    start = time.monotonic()
    try:
        jax.block_until_ready(call())
    except _ERRORS as error:
        say(f"failed after {time.monotonic() - start:.0f} s:", error)
    else:
        say("did not fail")


def different(what):
    """The processes make different calls."""
    mesh, other = line(), jax.process_index() == 1
    jax.block_until_ready(jaxmg.potrs(place(np.eye(12), mesh, "r", None), place(np.ones(12), mesh)))
    n = 48 if what == "order" and other else 40
    dtype = np.float32 if what.startswith("dtype") and other else np.float64
    a, b = place(np.eye(n, dtype=dtype), mesh, "r", None), place(np.ones(n, dtype), mesh)
    if what == "b":
        b = place(np.ones((n, 3 if other else 2)), mesh)
    if what == "routine" and other:
        fail(lambda: jaxmg.potri(a))
    elif what == "dtype of a solve":
        fail(lambda: jaxmg.linalg.solve(a, b))
    else:
        fail(lambda: jaxmg.potrs(a, b, 7 if what == "tile" and other else 5))
    # Such a call leaves nothing behind: the next call, alike in all processes, works.
    a = matrix(24)
    x = jaxmg.potrs(place(a, mesh, "r", None), place(np.ones(24), mesh))
    np.testing.assert_allclose(a @ np.asarray(x), 1, rtol=0, atol=1e-10)
    say("solved")


def orders(odd, known):
    """Process ``odd`` makes two calls in the opposite order; "known": all have made both before."""
    mesh, swapped = line(), jax.process_index() == int(odd)
    a, b = place(matrix(24), mesh, "r", None), place(np.ones(24), mesh)
    calls = [lambda: jaxmg.potrs(a, b, 5), lambda: jaxmg.syevd(a)[0]]
    if known == "known":
        for call in calls:
            jax.block_until_ready(call())
    for call in reversed(calls) if swapped else calls:
        fail(call)
    # The others wait for a process that arrives late because it reads a file, and compiles a
    # program that they have already compiled.
    if swapped:
        time.sleep(5)
    n = 36
    x = jaxmg.potrs(place(np.eye(n), mesh, "r", None), place(np.ones(n), mesh))
    np.testing.assert_allclose(np.asarray(x), 1, rtol=0, atol=1e-10)
    say("solved")


def late(index):
    """One process arrives at each of its calls much later than the others."""
    mesh, waits = line(), jax.process_index() == int(index)
    a, b = place(matrix(24), mesh, "r", None), place(np.ones(24), mesh)
    solve_ = jax.jit(lambda a, b: jaxmg.potrs(a, b, 5, mesh, P("r", None)))
    for _ in range(2):
        if waits:
            time.sleep(5)
        x = solve_(a, b)  # not awaited
        if waits:
            time.sleep(5)
        values = jaxmg.syevd(a, mesh=mesh)[0]
        np.testing.assert_allclose(matrix(24) @ np.asarray(x), 1, rtol=0, atol=1e-10)
        np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix(24)), rtol=0, atol=1e-10)
    say("solved")


def beside(count):
    """Solves together with an unrelated collective: in one program, in a loop of one, twice in one
    with other data, and in two programs at once; ``count`` times each."""
    count, mesh, n = int(count), line(), 32
    host = matrix(n)
    a, b = place(host, mesh, "r", None), place(np.arange(1.0, n + 1), mesh)
    rows = place(np.arange(float(n)), mesh, "r")
    total = jax.shard_map(
        lambda part: jax.lax.psum(part.sum(), "r"), mesh=mesh, in_specs=P("r"), out_specs=P()
    )
    options = {"mesh": mesh, "in_specs": P("r", None)}
    solved = jax.jit(lambda a, b: jaxmg.potrs(a, b, 4, **options))

    @jax.jit
    def both(a, b, rows):
        return solved(a, b), total(rows), solved(2 * a, b), total(3 * rows)

    @jax.jit
    def loop(a, b, rows):
        def step(carry, shift):
            x, sum_ = solved(a + shift * np.eye(n), b), total(rows * shift)
            return carry, (x, sum_)

        return jax.lax.scan(step, 0, np.arange(1.0, 4.0))[1]

    twice = jax.jit(lambda a, b: (solved(a, b), solved(4 * a, b), solved(8 * a, b)))
    exact, sum_ = np.linalg.solve(host, np.asarray(b)), n * (n - 1) / 2
    for _ in range(count):
        x, one, half, three = both(a, b, rows)
        np.testing.assert_allclose(x, exact, rtol=1e-9)
        np.testing.assert_allclose(half, exact / 2, rtol=1e-9)
        assert (one, three) == (sum_, 3 * sum_)
        xs, sums = loop(a, b, rows)
        for shift, x, one in zip((1, 2, 3), xs, sums, strict=True):
            shifted = np.linalg.solve(host + shift * np.eye(n), np.asarray(b))
            np.testing.assert_allclose(x, shifted, rtol=1e-9)
            assert one == shift * sum_
        for factor, x in zip((1, 4, 8), twice(a, b), strict=True):
            np.testing.assert_allclose(x, exact / factor, rtol=1e-9)
        # Two programs under way: the second one starts before the first one is awaited.
        first, second = twice(a, b), both(a, 2 * b, rows)
        np.testing.assert_allclose(second[0], 2 * exact, rtol=1e-9)
        np.testing.assert_allclose(first[1], exact / 4, rtol=1e-9)
    say("all right,", count)


def replicas():
    """Solves with A sharded over one axis and replicated over the other, whichever processes have
    them."""
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1)
    n = 24
    for across in (devices, devices.T):
        mesh = Mesh(across, ("S", "T"))
        for axis in ("S", "T"):
            for seed in range(2):
                a, b = matrix(n, seed), np.arange(1.0, n + 1)
                x = jaxmg.potrs(place(a, mesh, axis, None), place(b, mesh), 5)
                np.testing.assert_allclose(a @ np.asarray(x), b, rtol=0, atol=1e-10)
                inverse = jaxmg.potri(place(a, mesh, axis, None))
                check(a, inverse, np.eye(n))
    say("all right")


def small_replicas():
    """Calls with small matrices, eagerly, on meshes of replicas: no device works for the others if
    these are in several processes, even if each group of replicas is in one."""
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1)
    mesh = Mesh(devices, ("S", "T"))
    a, b = matrix(12), np.arange(1.0, 13)
    calls = (
        (lambda a, b, **options: jaxmg.potrs(a, b, **options), np.linalg.solve(a, b)),
        (lambda a, b, **options: linalg.cholesky(a, **options), np.linalg.cholesky(a)),
    )
    for axis, (call, expected) in itertools.product(("S", "T"), calls):
        options = {"mesh": mesh, "matrix_specs": P(axis, None)}
        placed = place(a, mesh, axis, None), place(b, mesh)
        for _ in range(2):
            for x in (call(*placed), call(a, b, **options)):
                assert x.sharding.device_set == set(jax.devices())
                for part in x.addressable_shards:
                    mine = expected[part.index]
                    np.testing.assert_allclose(part.data, mine, rtol=1e-9, atol=1e-12)
    say("all right")


def numpy_inputs():
    """Each process passes the same arrays, of an order that the ranks divide and of another one."""
    mesh = line()
    for n in (24, 29):
        a, b = matrix(n), np.arange(1.0, n + 1)
        check(a, jaxmg.potrs(a, b, mesh=mesh), b)
        check(a, jaxmg.potri(a, mesh=mesh), np.eye(n))
        w, v = jaxmg.syevd(a, mesh=mesh)
        v = multihost_utils.process_allgather(v, tiled=True)
        np.testing.assert_allclose(a @ v, v * np.asarray(w), rtol=0, atol=1e-10)
        factor = jaxmg.cho_factor(a, 3, mesh)
        check(a, jaxmg.cho_solve(factor, b), b)
        rows = jaxmg.cyclic_1d(a, 3, mesh)
        jaxmg.verify_cyclic(a, rows, 3)
    say("all right")


def bits():
    """Prints digests of the results of all routines on four devices, in any number of processes."""
    mesh, n = line(), 60
    a, b = place(matrix(n), mesh, "r", None), place(np.arange(1.0, n + 1), mesh)
    factor = jaxmg.cho_factor(a, 7)
    results = (
        *jaxmg.potrs(a, b, 7, return_logdet=True), jaxmg.potri(a, 7), *jaxmg.syevd(a),
        factor.solve(b), factor.upper(), factor.inv(),
    )  # fmt: skip
    for result in results:
        say("bits", hashlib.sha256(rendezvous.gather(result).tobytes()).hexdigest())


def export(folder):
    """Writes a program that another job with the same number of processes runs, without having
    called jaxmg."""
    mesh, path = line(), os.path.join(folder, "program")
    solved = jax.jit(lambda a, b: jaxmg.potrs(a, b, 4, mesh, P("r", None)))
    a = jax.ShapeDtypeStruct((16, 16), np.float64, sharding=NamedSharding(mesh, P("r", None)))
    b = jax.ShapeDtypeStruct((16,), np.float64, sharding=NamedSharding(mesh, P()))
    check_ = [jax.export.DisabledSafetyCheck.custom_call("jaxmg_potrs")]
    blob = jax.export.export(solved, disabled_checks=check_)(a, b).serialize()
    with open(f"{path}{jax.process_index()}", "wb") as file:
        file.write(blob)
    say("exported")


def run_exported(folder):
    mesh = line()
    with open(os.path.join(folder, f"program{jax.process_index()}"), "rb") as file:
        program = jax.export.deserialize(bytearray(file.read()))
    jaxmg.register_handlers(mesh=mesh)
    a, b = matrix(16), np.arange(1.0, 17)
    x = program.call(place(a, mesh, "r", None), place(b, mesh))
    np.testing.assert_allclose(a @ np.asarray(x), b, rtol=0, atol=1e-10)
    say("all right")


def growth(count):
    """Checks that threads, open files and memory of this process don't grow with the number of
    calls."""
    mesh = line()
    a, b = place(matrix(64), mesh, "r", None), place(np.ones(64), mesh)

    def used():
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), pages

    def run(times):
        for _ in range(times):
            jax.block_until_ready(jaxmg.potrs(a, b, 4, backend=_BACKEND))

    run(50)
    before = used()
    run(int(count))
    after = used()
    say("before", *before, "after", *after)
    assert after[0] <= before[0] + 4 and after[1] <= before[1] + 2, (before, after)
    assert after[2] <= before[2] + (16 << 20) // 4096, (before, after)
    say("all right")


def main():
    address, count, index, name, *arguments = sys.argv[1:]
    devices = os.environ.get("JAXMG_TEST_DEVICES")  # of each process, if all see all GPUs
    local = None
    if devices:
        local = range(int(index) * int(devices), (int(index) + 1) * int(devices))
    jax.distributed.initialize(address, int(count), int(index), local_device_ids=local)
    globals()[name](*arguments)


if __name__ == "__main__":
    main()
