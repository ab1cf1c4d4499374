"""Devices, matrices with known answers and error measures that the tests share."""

import contextlib
import functools
import itertools

import jax
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat
from jaxmg._call import programs
from jaxmg._linalg import compositions
from jaxmg._plugin import plugins

DTYPES = ("float32", "float64", "complex64", "complex128")
SIZES = (1, 2, 7, 97, 130)
RANKS = (1, 2, 3, 4, 5, 8)
TILES = (None, 1, 3, 32, 200)
KINDS = ("well", "cond", "graded", "clustered", "diagonal", "identity")

# Each size on each number of ranks; dtypes and tile widths are distributed over these cases. Each
# pair of values occurs in some case, at a fraction of the full product's compilations. Each value
# occurs in a case that isn't extended.
TABLE = [
    pytest.param(
        *(n, ranks, DTYPES[(i + j) % 4], TILES[(i + 2 * j) % 5]),
        id=f"n{n}-ranks{ranks}",
        marks=() if i % 3 == j % 3 else (pytest.mark.extended,),
    )
    for (i, n), (j, ranks) in itertools.product(enumerate(SIZES), enumerate(RANKS))
]


def broad(cases, core, alone=False, slow=None):
    """Returns the parameters of a test. Cases without ``core(*values)`` are marked as breadth, and
    core cases with ``slow(*values)`` as slow. ``alone`` skips the breadth in jobs of several
    processes, for tests that take long."""
    breadth = (pytest.mark.breadth, *((one_process("the core of it is run"),) if alone else ()))
    found = []
    for case in cases:
        if not hasattr(case, "values"):
            case = pytest.param(*case, id="-".join(map(str, case)))
        if not core(*case.values):
            marks = breadth
        else:
            marks = (pytest.mark.slow,) if slow and slow(*case.values) else ()
        found.append(pytest.param(*case.values, id=case.id, marks=(*case.marks, *marks)))
    return found


def breadth(*values):
    """Returns one parameter, or several, that the core of a test leaves out."""
    return pytest.param(*values, marks=pytest.mark.breadth)


def devices(count):
    """Returns ``count`` devices, spread evenly over the processes; skips the test if there are
    fewer."""
    found = jax.devices()
    if len(found) < count:
        pytest.skip(f"needs {count} devices, there are {len(found)}")
    processes = jax.process_count()
    if count == 1 or processes == 1:
        return jax.local_devices()[:count]
    if count < processes:
        pytest.skip(f"needs a device of each of {processes} processes, and has {count}")
    shares = [len(part) for part in np.array_split(range(count), processes)]
    local = len(found) // processes
    return [found[i * local + j] for i, share in enumerate(shares) for j in range(share)]


def pick(order):
    """Returns the devices at these indices; skips the test if a process has none of them."""
    found = np.array(devices(max(order) + 1))[order]
    if len({device.process_index for device in found}) < jax.process_count():
        pytest.skip(f"a process has none of the devices {order}")
    return found


def line(count, axis="r", kind=AxisType.Auto):
    """Returns a mesh with one axis."""
    return Mesh(np.array(devices(count)), (axis,), axis_types=(kind,))


def grid(kind=AxisType.Auto):
    """Returns a mesh with two axes, ("r", "c"), on 8 devices, or on 4 if there are fewer than 8."""
    count = 8 if len(jax.devices()) >= 8 else 4
    return Mesh(np.array(devices(count)).reshape(-1, 2), ("r", "c"), axis_types=(kind,) * 2)


# Parametrizes tests by meshes of automatic and of explicit axes; explicit axes are breadth.
kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(AxisType.Auto, id="automatic"),
        pytest.param(AxisType.Explicit, id="explicit", marks=pytest.mark.breadth),
    ],
)


def on(mesh, function):
    """Returns ``function``, called in the context of a mesh of explicit axes. Without this context
    JAX can't transpose eager operations on arrays of such a mesh."""

    @functools.wraps(function)
    def called(*arguments):
        if AxisType.Explicit not in mesh.axis_types:
            return function(*arguments)
        with context(mesh):
            return function(*arguments)

    return called


def like(array, other):
    """Returns ``array`` with the sharding of ``other``, if the mesh has explicit axes."""
    sharding = jax.typeof(other).sharding
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    return jax.sharding.reshard(array, sharding) if explicit else array


def shard(array, mesh, *entries):
    sharding = NamedSharding(mesh, P(*entries))
    if isinstance(array, jax.Array) or sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    # device_put would compare the arrays of the processes, and NaN differs from NaN.
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def shard_rows(array, mesh):
    """Shards the rows over the mesh if the devices divide them; replicates the array otherwise, as
    JAX requires."""
    divides = array.shape[0] % mesh.devices.size == 0
    return shard(array, mesh, *((mesh.axis_names, None) if divides else ()))


def forget_plans():
    """Clears the caches of plans, after a test has changed something that plans depend on."""
    kept = programs._slots, programs._compiled, compositions._jit_run, compositions._jit_batch
    for cache in kept:
        cache.cache_clear()


def finish_programs():
    """Waits for the programs that make arrays in use. Call it before you change what ranks do: the
    ranks of a program that runs would decide differently, and wait for each other."""
    for array in jax.live_arrays():
        with contextlib.suppress(RuntimeError):  # deleted, or its program failed
            array.block_until_ready()


def set_eigensolver(name):
    """Sets which devices solve an eigenproblem, once no program runs."""
    finish_programs()
    plugins.load(jax.default_backend()).set_eigensolver(name)


@contextlib.contextmanager
def by_all_ranks():
    """In this context all CPU devices share the work that one rank otherwise does by LAPACK."""
    plugin = plugins.load(jax.default_backend())

    def let_one_rank_work(allowed):
        finish_programs()
        plugin.set_whole_matrices(allowed)
        forget_plans()

    let_one_rank_work(False)
    try:
        yield
    finally:
        let_one_rank_work(True)


def context(mesh):
    """Returns a context in which ``mesh`` is the context mesh."""
    return jax.set_mesh(mesh) if hasattr(jax, "set_mesh") else jax.sharding.use_mesh(mesh)


@contextlib.contextmanager
def without_64_bits():
    """In this context JAX computes with 32 bits, as it does by default."""
    jax.config.update("jax_enable_x64", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", True)


def watch_programs(monkeypatch):
    """Returns a list of the programs that eager calls compile from here on."""
    found, compiled = [], programs._compiled

    def watched(*key):
        def run(*arrays):
            found.append(compiled(*key).lower(*arrays).compile())
            return found[-1](*arrays)

        return run

    monkeypatch.setattr(programs, "_compiled", watched)
    return found


needs_transformations = pytest.mark.skipif(
    not _compat.TRANSFORMS, reason="derivatives and batches need JAX 0.10"
)


def one_process(reason):
    """Marks a test that needs no run in jobs of several processes."""
    return pytest.mark.skipif(jax.process_count() > 1, reason=f"in one process: {reason}")


def eps(dtype):
    return float(np.finfo(dtype).eps)


def rng(*seed):
    return np.random.default_rng([7, *seed])


def normal(random, shape, dtype):
    value = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        value = value + 1j * random.standard_normal(shape)
    return value.astype(dtype)


def spectrum(kind, n, dtype):
    """Returns the eigenvalues of matrices of a kind with a chosen spectrum."""
    if kind == "cond":  # 1e12 in double precision; in single precision, as close to singular
        worst = 1e12 if eps(dtype) < 1e-10 else 1e4
        return np.logspace(0, -np.log10(worst), n)
    if kind == "clustered":
        cluster = np.arange(n) // 3
        return 1 + cluster % 2 + 10 * eps(dtype) * np.arange(n)
    return np.linspace(1, 2, n)


def positive_definite(kind, n, dtype):
    """Returns a Hermitian positive definite matrix, stored in full."""
    random = rng(n)
    if kind == "identity":
        return np.eye(n, dtype=dtype)
    if kind == "diagonal":
        return np.diag(np.arange(1, n + 1)).astype(dtype)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    q, _ = np.linalg.qr(normal(random, (n, n), wide))
    matrix = (q * spectrum(kind, n, dtype)) @ q.conj().T
    if kind == "graded":
        scale = np.logspace(0, -6 if eps(dtype) < 1e-10 else -2, n)
        matrix = scale[:, None] * matrix * scale
    matrix = (matrix + matrix.conj().T) / 2
    return matrix.astype(dtype)


def general(kind, n, dtype):
    """Returns a matrix that isn't Hermitian and whose LU decomposition needs pivoting."""
    random = rng(n, 5)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    left, right = (np.linalg.qr(normal(random, (n, n), wide))[0] for _ in range(2))
    return ((left * spectrum(kind, n, dtype)) @ right).astype(dtype)


def conditioned(condition, n, dtype="float64"):
    """Returns a matrix with this condition number, which the diagonal doesn't reveal."""
    q, _ = np.linalg.qr(
        normal(rng(n), (n, n), np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
    )
    matrix = (q * np.logspace(0, -np.log10(condition), n)) @ q.conj().T
    return ((matrix + matrix.conj().T) / 2).astype(dtype)


def hermitian(n, dtype):
    matrix = normal(rng(n), (n, n), dtype)
    return (matrix + matrix.conj().T) / 2


def hermitian_part(a):
    """Returns the Hermitian part. All conventions of derivatives agree for Hermitian tangents."""
    return (a + like(a.conj().T, a)) / 2


def precisely(function):
    """Returns the function with JAX's own products in full precision, which isn't GPUs' default."""

    @functools.wraps(function)
    def called(*arguments):
        with jax.default_matmul_precision("highest"):
            return function(*arguments)

    return called


def upper_only(matrix):
    """Returns the matrix with NaN below the diagonal, which no routine may read."""
    spoilt = matrix.copy()
    spoilt[np.tril_indices(len(matrix), -1)] = np.nan
    return spoilt


def wide(array):
    """Returns the array in double precision, to measure errors."""
    array = np.asarray(array)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def backward_error(matrix, x, b):
    """Returns the largest |A x - b| / (|A| |x|) over the right-hand sides."""
    matrix, x, b = wide(matrix), wide(x), wide(b)
    x, b = x.reshape(len(x), -1), b.reshape(len(b), -1)
    scale = np.linalg.norm(matrix, 2) * np.linalg.norm(x, axis=0)
    return np.max(np.linalg.norm(matrix @ x - b, axis=0) / scale)


def inverse_error(matrix, inverse):
    return np.linalg.norm(wide(matrix) @ wide(inverse) - np.eye(len(matrix)), 2)


def eigen_errors(matrix, w, v):
    """Returns (residual |A V - V W| / |A|, departure from orthogonality |V^H V - I|)."""
    matrix, w, v = wide(matrix), wide(w), wide(v)
    residual = np.linalg.norm(matrix @ v - v * w, 2) / np.linalg.norm(matrix, 2)
    return residual, np.linalg.norm(v.conj().T @ v - np.eye(len(v)), 2)


def check_potrs(matrix, x, b):
    __tracebackhide__ = True
    assert np.shape(x) == np.shape(b)
    assert x.dtype == matrix.dtype
    assert backward_error(matrix, x, b) <= 10 * len(matrix) * eps(matrix.dtype)


def check_as_good_as_plain(matrix, a, b, mesh, x):
    """Checks each column's backward error against the error of potrs's solution."""
    __tracebackhide__ = True
    plain = np.asarray(jaxmg.potrs(a, b, None, mesh)).reshape(len(b), -1)
    x, b = np.asarray(x).reshape(plain.shape), b.reshape(plain.shape)
    for column in range(x.shape[1]):
        if not b[:, column].any():
            assert not x[:, column].any()
            continue
        error, usual = (
            backward_error(matrix, v[:, column] / size, b[:, column] / size)
            for size in (np.abs(b[:, column]).max(),)
            for v in (x, plain)
        )
        assert error <= 2 * usual + 2 * eps(matrix.dtype)


def check_potri(matrix, inverse):
    """Checks the inverse against the error of LAPACK's inverse of the same matrix."""
    __tracebackhide__ = True
    assert inverse.shape == matrix.shape
    assert inverse.dtype == matrix.dtype
    reference = inverse_error(matrix, lapack_inverse(matrix))
    assert inverse_error(matrix, inverse) <= 10 * reference + 10 * len(matrix) * eps(matrix.dtype)


def lapack_inverse(matrix):
    potrf, potri = scipy.linalg.get_lapack_funcs(("potrf", "potri"), (matrix,))
    factor, info = potrf(matrix, lower=0)
    assert info == 0
    upper, info = potri(factor, lower=0)
    assert info == 0
    upper = np.triu(upper)
    return upper + np.triu(upper, 1).conj().T


def check_syevd(matrix, w, v):
    """Checks the eigenpairs against the errors of LAPACK's eigenvectors of the same matrix."""
    __tracebackhide__ = True
    reference_w, reference_v = np.linalg.eigh(matrix)
    n, unit = len(matrix), eps(matrix.dtype)
    assert w.dtype == reference_w.dtype
    assert v.dtype == matrix.dtype
    assert np.all(np.diff(w) >= 0)
    largest = np.abs(reference_w).max(initial=0)
    np.testing.assert_allclose(w, reference_w, rtol=0, atol=10 * n * unit * largest)
    errors = eigen_errors(matrix, w, v)
    for error, reference in zip(
        errors, eigen_errors(matrix, reference_w, reference_v), strict=True
    ):
        assert error <= 5 * reference + 5 * unit * n**0.5


def check_diagonalises(n, ranks, dtype, tile):
    """Checks syevd of a matrix with NaN below the diagonal; returns the sharded matrix and the
    eigenvalues."""
    __tracebackhide__ = True
    mesh = line(ranks)
    matrix = hermitian(n, dtype)
    a = shard_rows(upper_only(matrix), mesh)
    w, v, status = jaxmg.syevd(a, tile, mesh, return_status=True)
    check_syevd(matrix, w, v)
    assert v.sharding.is_equivalent_to(a.sharding, 2)
    assert w.sharding.is_fully_replicated
    assert status.shape == () and status.dtype == np.int32 and status == 0
    return a, w


def check_subset(matrix, first, last, w, v):
    """Checks the eigenvalues [first, last) and their eigenvectors."""
    __tracebackhide__ = True
    n, unit = len(matrix), eps(matrix.dtype)
    expected = np.linalg.eigvalsh(matrix)
    largest = np.abs(expected).max()
    assert w.shape == (last - first,) and v.shape == (n, last - first)
    assert v.dtype == matrix.dtype
    np.testing.assert_allclose(w, expected[first:last], rtol=0, atol=10 * n * unit * largest)
    w, v = np.asarray(w), np.asarray(v)
    assert np.linalg.norm(matrix @ v - v * w, 2) <= 10 * n * unit * largest
    assert np.linalg.norm(v.conj().T @ v - np.eye(last - first), 2) <= 10 * n * unit
