"""What a compiled program passes to the native code: nothing about the process that traced it, and
nothing that the handlers don't know."""

import cases
import jax
import numpy as np
import pytest
from processes import run

import jaxmg
from jaxmg._plugin import plugins
from jaxmg._routines import table
from jaxmg._stacks import native

# Prints a digest of a program, its result, and its hits of the cache. The programs that a process
# traces before it differ.
_PROGRAM = """
import hashlib, sys
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import jaxmg

jax.config.update("jax_enable_x64", True)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
mesh = Mesh(np.array(jax.devices()[:4]), ("r",))
for n in map(int, sys.argv[1:]):
    jaxmg.potri(np.eye(n), 2, mesh)
    jaxmg.potrs(np.eye(n), np.ones(n), 2, mesh)


def everything(a, b):
    options = {"mesh": mesh, "in_specs": P("r", None)}
    x, logdet = jaxmg.potrs(a, b, 3, return_logdet=True, **options)
    return x, logdet, jaxmg.potri(2 * a, **options), jaxmg.syevd(a, **options)


hits.clear()
lowered = jax.jit(everything).lower(np.eye(12), np.ones((12, 2)))
print(hashlib.sha256(lowered.as_text().encode()).hexdigest())
x = jax.jit(everything)(np.eye(12), np.ones((12, 2)))[0]
print(np.asarray(x).sum(), sum(event == "/jax/compilation_cache/cache_hits" for event in hits))
"""

_CPU = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    # Also caches programs that compile in less than a second.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


@pytest.fixture(autouse=True)
def _on_cpu_devices():
    if jax.devices()[0].platform != "cpu":
        pytest.skip("starts processes of its own, which would share the GPUs")


@pytest.mark.slow
def test_two_processes_make_the_same_program_and_share_its_cache(tmp_path):
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    first = run("-c", _PROGRAM, "5", "7", **_CPU, **cache)
    assert first.returncode == 0, first.stderr
    second = run("-c", _PROGRAM, "8", "6", "4", **_CPU, **cache)
    assert second.returncode == 0, second.stderr
    (digest, result), (same, again) = first.stdout.splitlines(), second.stdout.splitlines()
    assert digest == same
    assert result == "24.0 0"
    assert again == "24.0 1"


_EXPORTED = """
import sys
import jax, numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import jaxmg

jax.config.update("jax_enable_x64", True)
mesh = Mesh(np.array(jax.devices()[:2]), ("r",))
a = jax.device_put(4 * np.eye(6), NamedSharding(mesh, P("r", None)))
b = jax.device_put(np.ones(6), NamedSharding(mesh, P()))
if sys.argv[2] == "write":
    solve = jax.jit(lambda a, b: jaxmg.potrs(a, b, 2, mesh, P("r", None)))
    check = [export.DisabledSafetyCheck.custom_call("jaxmg_potrs")]
    with open(sys.argv[1], "wb") as file:
        file.write(export.export(solve, disabled_checks=check)(a, b).serialize())
else:
    jaxmg.register_handlers()
    with open(sys.argv[1], "rb") as file:
        print(jax.jit(export.deserialize(file.read()).call)(a, b).sum())
"""


def test_exported_program_runs_in_a_new_process(tmp_path):
    pytest.importorskip("flatbuffers")  # JAX serializes with it; CI's installed wheels have it
    for mode in ("write", "read"):
        result = run("-c", _EXPORTED, str(tmp_path / "program"), mode, **_CPU)
        assert result.returncode == 0, result.stderr
    assert result.stdout == "1.5\n"


def test_handlers_may_be_registered_again():
    for platform in (None, "cpu"):
        jaxmg.register_handlers(platform)
    matrix = cases.positive_definite("well", 8, "float64")
    cases.check_potrs(matrix, jaxmg.potrs(matrix, np.ones(8), 2, cases.line(2)), np.ones(8))
    with pytest.raises(RuntimeError, match="no plugin for platform 'tpu'"):
        jaxmg.register_handlers("tpu")


_NOBODY = np.zeros(0, np.int64)  # all ranks are in this process
_RIGHT = {
    "processes": _NOBODY, "n": 4, "ranks": 1, "tile": 0, "grid_rows": 0, "products": 0,
    "check_b": False,
}  # fmt: skip


def _number(value):
    """Returns the value as an attribute: integers become 64-bit, booleans stay."""
    return np.int64(value) if type(value) is int else value


def _call(backend="native", **attributes):
    """Calls the handler of potrs on one device."""
    plugins.load("cpu")
    a, b = np.eye(4), np.ones((4, 1))
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (a, b)]
    results += [jax.ShapeDtypeStruct((1,), dtype) for dtype in ("float64", "int32")]
    call = jax.ffi.ffi_call("jaxmg_potrs", results)
    numbers = {name: _number(value) for name, value in attributes.items()}
    numbers |= {} if backend is None else {"backend": backend}
    with jax.default_device(jax.local_devices()[0]):
        return jax.jit(lambda *arrays: call(*arrays, **numbers))(np.zeros(2, np.int32), a, b)


def test_right_attributes():
    _, x, logdet, status = _call(**_RIGHT)
    assert x.sum() == 4 and logdet == 0 and status == 0


@pytest.mark.parametrize("name", [*_RIGHT, "backend"])
def test_a_missing_attribute_is_an_error(name):
    attributes = {key: value for key, value in _RIGHT.items() if key != name}
    backend = None if name == "backend" else "native"
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"attribute '{name}' is missing"):
        _call(backend, **attributes)


@pytest.mark.parametrize("name", ["tf23", "vectors", "call"])
def test_an_unknown_attribute_is_an_error(name):
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"attribute '{name}' is unknown"):
        _call(**_RIGHT, **{name: 1})


def test_an_attribute_of_another_type_is_an_error():
    with pytest.raises(jax.errors.JaxRuntimeError, match="attribute 'tile' is no 64-bit integer"):
        _call(**(_RIGHT | {"tile": np.float32(1)}))
    with pytest.raises(jax.errors.JaxRuntimeError, match="attribute 'check_b' is no boolean"):
        _call(**(_RIGHT | {"check_b": 0}))
    with pytest.raises(jax.errors.JaxRuntimeError, match="attribute 'processes' is no array"):
        _call(**(_RIGHT | {"processes": 0}))
    with pytest.raises(jax.errors.JaxRuntimeError, match="attribute 'backend' is no string"):
        _call(backend=np.int64(1), **_RIGHT)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no backend 'nativ'"):
        _call(backend="nativ", **_RIGHT)


_BLOCK, _NONE, _COLUMN = (4, 4), (0, 4), (4, 1)
_STATUS = jax.ShapeDtypeStruct((1,), np.int32)
_NUMBER = jax.ShapeDtypeStruct((), np.int32)
_PIVOTS = jax.ShapeDtypeStruct((4,), np.int32)
_T = (4, 64)
# Handler -> (operands after the coordinates, results, attributes that only some handlers have).
_HANDLERS = {
    "jaxmg_potri": ([_BLOCK], [_BLOCK, _STATUS], {"products": 0}),
    "jaxmg_gesv": (
        [_BLOCK, _COLUMN],
        [_BLOCK, _COLUMN, (1,), (1,), _STATUS],
        {"products": 0, "check_b": False},
    ),
    "jaxmg_getri": ([_BLOCK], [_BLOCK, _STATUS], {"products": 0}),
    "jaxmg_getrf": (
        [_BLOCK],
        [_BLOCK, _NONE, _PIVOTS, (1,), (1,), _STATUS],
        {"m": 4, "products": 0},
    ),
    "jaxmg_lu_apply": ([_BLOCK, _NONE, _PIVOTS, _COLUMN], [_COLUMN], {"operation": 0}),
    "jaxmg_lu_solve_rows": ([_BLOCK, _NONE, _PIVOTS, _BLOCK], [_BLOCK], {"operation": 0}),
    "jaxmg_lu_invert": ([_BLOCK, _NONE, _PIVOTS], [_BLOCK], {"products": 0}),
    "jaxmg_lu_diagonal": ([_BLOCK, _NONE], [(4,)], {"m": 4}),
    "jaxmg_lu_rows": ([_BLOCK, _NONE], [_BLOCK], {"m": 4}),
    "jaxmg_lu_tiles": ([_BLOCK], [_BLOCK, _NONE], {"m": 4}),
    "jaxmg_hetrf": (
        [_BLOCK, _PIVOTS],
        [_BLOCK, (4, 6), (4, 8), _PIVOTS, _PIVOTS, (1,), (1,), _STATUS],
        {"products": 0, "hermitian": True},
    ),
    "jaxmg_ldl_solve": (
        [_BLOCK, _NONE, (4, 8), _PIVOTS, _PIVOTS, _COLUMN],
        [_COLUMN],
        {"operation": 0, "hermitian": True},
    ),
    "jaxmg_ldl_inertia": (
        [_BLOCK, _NONE, (4, 6)],
        [jax.ShapeDtypeStruct((3,), np.int32)],
        {},
    ),
    "jaxmg_geqrf": ([_BLOCK], [_BLOCK, _NONE, (4,), _T, _STATUS], {"m": 4, "products": 0}),
    "jaxmg_gels": (
        [_BLOCK, _COLUMN],
        [_BLOCK, _COLUMN, (4,), _STATUS],
        {"m": 4, "products": 0, "operation": 0, "check_b": False},
    ),
    "jaxmg_qr_apply": ([_BLOCK, _NONE, _T, _COLUMN], [_COLUMN], {"m": 4, "operation": 0}),
    "jaxmg_qr_apply_rows": ([_BLOCK, _NONE, _T, _BLOCK], [_BLOCK], {"m": 4, "operation": 0}),
    "jaxmg_qr_solve": ([_BLOCK, _NONE, _T, _COLUMN], [_COLUMN], {"m": 4, "operation": 0}),
    "jaxmg_qr_form": ([_BLOCK, _NONE, _T], [_BLOCK], {"m": 4, "products": 0}),
    "jaxmg_tall_qr": (
        [_BLOCK, _COLUMN, _NONE],
        [_BLOCK, _BLOCK, _COLUMN, _STATUS, _STATUS],
        {"with_b": True, "with_q": True},
    ),
    "jaxmg_gesvd": (
        [_BLOCK],
        [_BLOCK, _NONE, _NONE, (4,), _STATUS],
        {"vectors": False, "first": 0, "last": 4, "in_double": False},
    ),
    "jaxmg_polar": (
        [_BLOCK],
        [_BLOCK, _BLOCK, _STATUS],
        {"hermitian": True, "in_double": False},
    ),
    "jaxmg_syevd": ([_BLOCK], [_BLOCK, (4,), _STATUS], {"vectors": True}),
    "jaxmg_syevx": ([_BLOCK], [_BLOCK, (4, 2), (4,), _STATUS], {"first": 1, "last": 3}),
    "jaxmg_sygvd": ([_BLOCK, _BLOCK], [_BLOCK, _BLOCK, (4,), _STATUS], {"vectors": True}),
    "jaxmg_sygvx": (
        [_BLOCK, _BLOCK],
        [_BLOCK, _BLOCK, (4, 2), (4,), _STATUS],
        {"first": 1, "last": 3},
    ),
    "jaxmg_potrf": ([_BLOCK], [_BLOCK, _NONE, (1,), _STATUS], {"products": 0}),
    "jaxmg_factor_apply": ([_BLOCK, _NONE, _COLUMN], [_COLUMN], {"operation": 0}),
    "jaxmg_factor_solve_rows": ([_BLOCK, _NONE, _BLOCK], [_BLOCK], {"inverse": False}),
    "jaxmg_factor_invert": ([_BLOCK, _NONE], [_BLOCK], {"products": 0}),
    "jaxmg_factor_diagonal": ([_BLOCK, _NONE], [(4,)], {}),
    "jaxmg_factor_tiles": ([_BLOCK], [_BLOCK, _NONE], {}),
    "jaxmg_factor_rows": ([_BLOCK, _NONE], [_BLOCK], {}),
    "jaxmg_factor_update": (
        [_BLOCK, _NONE, _COLUMN],
        [_BLOCK, _NONE, (1,), _STATUS],
        {"downdate": False},
    ),
    "jaxmg_hemm": ([_BLOCK, _COLUMN], [_COLUMN], {"parts": 2}),
    "jaxmg_all_gather": ([_BLOCK], [_BLOCK], {}),
    "jaxmg_root_exchange": (
        [_BLOCK, _COLUMN],
        [_BLOCK, _COLUMN, _NUMBER],
        {"gathers": True},
    ),
    "jaxmg_product": (
        [_BLOCK, _BLOCK],
        [_BLOCK],
        {"m": 4, "k": 4, "operation": 0, "triangle": 0, "conjugates": True},
    ),
}


_COMMON = ("n", "ranks", "tile", "grid_rows", "backend", "processes")


def _call_handler(name, without=None, pivots=4, **attributes):
    plugins.load("cpu")
    operands, results, own = _HANDLERS[name]
    values = {_BLOCK: np.eye(4), _PIVOTS: np.arange(pivots, dtype=np.int32)}
    arrays = [values[x] if x in values else np.ones(x) for x in operands]
    results = [jax.ShapeDtypeStruct(x, np.float64) if isinstance(x, tuple) else x for x in results]
    numbers = (
        {"n": 4, "ranks": 1, "tile": 2, "grid_rows": 0, "processes": _NOBODY} | own | attributes
    )
    everything = {key: _number(value) for key, value in numbers.items()}
    everything["backend"] = "native"
    everything.pop(without, None)
    call = jax.ffi.ffi_call(name, results)
    with jax.default_device(jax.local_devices()[0]):
        return jax.jit(lambda *arrays: call(*arrays, **everything))(np.zeros(2, np.int32), *arrays)


def test_these_are_all_handlers():
    others = {"jaxmg_potrs", "jaxmg_cyclic_1d", *(f"jaxmg_{name}" for name in native.HANDLERS)}
    assert _HANDLERS.keys() | others == {*table.HANDLERS}


@pytest.mark.parametrize("first, last", [(2, 2), (-1, 2), (1, 5)])
def test_singular_values_that_a_matrix_does_not_have(first, last):
    with pytest.raises(jax.errors.JaxRuntimeError, match="gesvd: "):
        jax.block_until_ready(_call_handler("jaxmg_gesvd", first=first, last=last))


@pytest.mark.core("jaxmg_potrf", "jaxmg_syevd", "jaxmg_gesv", "jaxmg_geqrf")
@pytest.mark.parametrize("name", _HANDLERS)
def test_every_handler_takes_exactly_its_attributes(name):
    jax.block_until_ready(_call_handler(name))
    for attribute in _COMMON + tuple(_HANDLERS[name][2]):
        message = f"attribute '{attribute}' is missing"
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            _call_handler(name, without=attribute)
    with pytest.raises(jax.errors.JaxRuntimeError, match="attribute 'novel' is unknown"):
        _call_handler(name, novel=1)


@pytest.mark.parametrize("name", ["jaxmg_syevx", "jaxmg_sygvx"])
@pytest.mark.parametrize("subset", [{"first": -1}, {"first": 3}, {"last": 5}])
def test_eigenvalues_that_there_are_not(name, subset):
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"there are no eigenvalues \["):
        _call_handler(name, **subset)


@pytest.mark.parametrize("name", ["jaxmg_lu_apply", "jaxmg_lu_solve_rows", "jaxmg_lu_invert"])
@pytest.mark.parametrize("count", [3, 5])
def test_pivots_that_are_not_one_for_each_column(name, count):
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"pivots must be \(4\)"):
        _call_handler(name, pivots=count)


def test_operation_that_is_not_there():
    with pytest.raises(jax.errors.JaxRuntimeError, match="there is no operation 5"):
        _call_handler("jaxmg_factor_apply", operation=5)
    with pytest.raises(jax.errors.JaxRuntimeError, match="there is no operation 3"):
        _call_handler("jaxmg_lu_apply", operation=3)


def test_precision_that_is_not_there():
    for products in (-1, 6, 9):
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"there is no precision {products}"):
            _call(**(_RIGHT | {"products": products}))


@pytest.mark.parametrize(
    "attributes, message",
    [
        ({"operation": 5}, "there is no product 5"),
        ({"triangle": 3}, "there is no triangle 3"),
        ({"m": 5}, r"a block of 4 x 4 on each of 1 ranks does not hold a matrix of 5 x 4"),
        ({"k": 3}, r"a block of 4 x 4 on each of 1 ranks does not hold a matrix of 4 x 3"),
        ({"operation": 3, "m": 3}, "the result must be 3 x 3, not 3 x 4"),
        ({"operation": 4, "k": 3}, "the result must be 4 x 3, not 4 x 4"),
    ],
)
def test_products_of_other_shapes(attributes, message):
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        _call_handler("jaxmg_product", **attributes)


def test_a_product_of_two_dtypes():
    plugins.load("cpu")
    numbers = {"n": 4, "m": 4, "k": 4, "ranks": 1, "tile": 0, "grid_rows": 0, "operation": 0}
    values = {name: np.int64(value) for name, value in (numbers | {"triangle": 0}).items()}
    call = jax.ffi.ffi_call("jaxmg_product", jax.ShapeDtypeStruct((4, 4), np.float64))
    with pytest.raises(jax.errors.JaxRuntimeError, match="must have x's dtype"):
        jax.block_until_ready(
            call(
                np.zeros(2, np.int32), np.eye(4), np.eye(4, dtype=np.float32), backend="native",
                conjugates=True, processes=_NOBODY, **values,
            )
        )  # fmt: skip


def test_no_parts():
    with pytest.raises(jax.errors.JaxRuntimeError, match="parts must be positive; got 0"):
        _call_handler("jaxmg_hemm", parts=0)


@pytest.mark.parametrize("products", [1, 2, 3, 4])
def test_lower_precision_is_for_single_precision(products):
    with pytest.raises(jax.errors.JaxRuntimeError, match="are for float32 and complex64"):
        _call(**(_RIGHT | {"products": products}))
    for name in ("jaxmg_gesv", "jaxmg_getri", "jaxmg_getrf", "jaxmg_lu_invert"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="are for float32 and complex64"):
            _call_handler(name, products=products)


def test_equal_calls_of_one_program_do_not_meet():
    """Equal calls of one program don't mix, in whatever order they run, although no number tells
    them apart."""
    mesh = cases.line(4)
    matrix = cases.positive_definite("well", 24, "float64")
    a = cases.shard(matrix, mesh, "r", None)
    b = np.ones((24, 2))

    @jax.jit
    def solve(a, b):
        return [jaxmg.potrs((k + 1) * a, b, 2, mesh) for k in range(4)]

    for _ in range(5):
        for k, x in enumerate(jax.block_until_ready(solve(a, b))):
            cases.check_potrs((k + 1) * matrix, x, b)


@pytest.mark.parametrize(
    "tile, rows, message",
    [(2, 1, r"the overflow tile must be \(0, 4\)"), (3, 0, "tile = 3 is not a tile width")],
)
def test_a_factor_that_does_not_fit_itself_is_refused(tile, rows, message):
    """A factor is refused if its overflow tile or its width doesn't fit the layout."""
    plugins.load(jax.devices()[0].platform)
    attributes = {
        name: np.int64(value)
        for name, value in {"n": 4, "ranks": 1, "tile": tile, "grid_rows": 0}.items()
    } | {"processes": _NOBODY}
    call = jax.ffi.ffi_call("jaxmg_factor_diagonal", jax.ShapeDtypeStruct((4,), np.float64))
    arrays = np.zeros(2, np.int32), np.eye(4), np.zeros((rows, 4))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(*arrays, backend="native", **attributes))
